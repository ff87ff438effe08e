#pragma once
#include <cstdlib>
#include <filesystem>

namespace millrace::test {

// tests/golden of the source tree; MILLRACE_TEST_DATA in the environment names a copy on another machine.
inline std::filesystem::path data_dir() {
  const char* elsewhere = std::getenv("MILLRACE_TEST_DATA");
  return elsewhere ? elsewhere : MILLRACE_TEST_DATA;
}

}  // namespace millrace::test
