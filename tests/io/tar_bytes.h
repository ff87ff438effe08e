#pragma once
#include <fmt/format.h>

#include <cstring>
#include <string>

// USTAR blocks by hand, so that a test can break every byte of them.
namespace millrace::test {

inline std::string tar_header(const std::string& name, std::uint64_t bytes, char type = '0') {
  std::string block(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { block.replace(at, text.size(), text); };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", bytes));
  put(136, "00000000000");
  put(148, "        ");
  block[156] = type;
  put(257, std::string("ustar\0"
                       "00",
                       8));
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return block;
}

inline std::string tar_member(const std::string& name, const std::string& data, char type = '0') {
  std::string bytes = tar_header(name, data.size(), type) + data;
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

inline std::string tar_end() {
  return std::string(1024, '\0');
}

}  // namespace millrace::test
