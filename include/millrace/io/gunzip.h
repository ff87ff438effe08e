#pragma once
#include <string>

#include "millrace/core/files.h"

namespace millrace {

// The whole text of a file, unpacked where it is gzipped, without a byte order mark. Error(io) naming the file when it
// is missing, damaged or cut short.
std::string gunzip_file(const fs::path& path);

}  // namespace millrace
