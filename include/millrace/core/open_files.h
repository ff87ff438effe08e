#pragma once
#include <cstddef>

namespace millrace {

// Raises the process's limit of open files, usually 1024, to `wanted` and some for everything else, as far as it may be
// raised; beyond that, opening a file fails.
void allow_open_files(std::size_t wanted);

}  // namespace millrace
