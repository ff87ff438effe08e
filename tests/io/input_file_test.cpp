#include "millrace/io/input_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "core/temp_dir.h"

namespace millrace::test {
namespace {

// Of holes, which take no room on the disk.
TEST(InputFile, MayHaveMoreThan4GiB) {
  constexpr std::uint64_t far = (1ull << 32) + 16;
  const TempDir folder;
  const auto path = folder.write("a", "");
  std::filesystem::resize_file(path, far);
  std::ofstream(path, std::ios::binary | std::ios::app) << "far away";
  const InputFile file(path.string());
  std::string bytes(8, '\0');
  EXPECT_EQ(file.size(), far + bytes.size());
  EXPECT_EQ(file.read_at(far, std::as_writable_bytes(std::span(bytes))), bytes.size());
  EXPECT_EQ(bytes, "far away");
}

}  // namespace
}  // namespace millrace::test
