#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/tar.h"
#include "test_data.h"

// What the tests of this module share.
namespace millrace::test {

inline fs::path golden(const std::string& name) {
  return test::data_dir() / "io" / name;
}

inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_file(golden(name)));
}

// A directory of its own for each test, gone afterwards.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (fs::temp_directory_path() / "millrace-io-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~ScratchDirectory() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

  fs::path write(const std::string& name, std::string_view content) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  fs::path path_;
};

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string as_text(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

inline std::string read_all(ByteStream& stream) {
  std::string all;
  std::array<std::byte, 1000> buffer;
  while (const std::size_t got = stream.read(buffer)) all += as_text({buffer.data(), got});
  return all;
}

// Samples of a tar, by a pass over its headers.
inline std::uint64_t count_samples(const std::string& path) {
  return TarReader(path).skip(std::numeric_limits<std::uint64_t>::max());
}

// Golden files hold bytes as text in which each character is one byte.
inline std::string from_latin1(const std::string& utf8) {
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    bytes += c < 0x80 ? utf8[i] : static_cast<char>((c & 3) << 6 | (static_cast<unsigned char>(utf8[++i]) & 63));
  }
  return bytes;
}

}  // namespace millrace::test
