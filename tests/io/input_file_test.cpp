#include "millrace/io/input_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "core/temp_dir.h"
#include "file_stream.h"
#include "millrace/core/storage_error.h"

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

// All that a stream gives, in pieces of `piece` bytes.
std::string read_all(FileStream& stream, std::size_t piece = 5) {
  std::string all, bytes(piece, '\0');
  while (const auto got = stream.read(std::as_writable_bytes(std::span(bytes)))) all.append(bytes, 0, got);
  return all;
}

TEST(InputFile, ThatBecomesShorterIsAFaultOfStorageHoweverItIsRead) {
  const TempDir folder;
  const auto path = folder.write("a", std::string(64, 'a'));
  FileStream stream(path.string());
  const InputFile file(path.string());
  std::filesystem::resize_file(path, 8);
  std::string bytes(16, '\0');
  EXPECT_THROW(read_all(stream), StorageError);
  EXPECT_THROW(file.read_at(0, std::as_writable_bytes(std::span(bytes))), StorageError);
}

// The kernel says 4,096 of each file in /sys.
TEST(InputFile, WhoseSizeIsNoCountOfBytesEndsWhereItEnds) {
  const std::string path = "/sys/devices/system/cpu/online";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  std::string expected, bytes(4096, '\0');
  std::getline(std::ifstream(path), expected);
  expected += '\n';
  FileStream stream(path);
  EXPECT_EQ(read_all(stream), expected);
  bytes.resize(InputFile(path).read_at(0, std::as_writable_bytes(std::span(bytes))));
  EXPECT_EQ(bytes, expected);
}

}  // namespace
}  // namespace millrace::test
