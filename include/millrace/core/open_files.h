#pragma once
#include <cstddef>

namespace millrace {

// Raises the process's limit of open files, which usually is 1024, to what `wanted` ones and all others take, as far as
// it may be raised; where it may not, opening one too many will say so.
void allow_open_files(std::size_t wanted);

}  // namespace millrace
