#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "gunzip_stream.h"
#include "millrace/core/files.h"

namespace millrace {

// The bytes of a file one by one, unpacked where it is gzipped, for parsers of rows. Errors name file and line.
class TextFile {
 public:
  explicit TextFile(const fs::path& path);

  // The next byte, or `end`.
  static constexpr int end = -1;
  int get() {
    if (next_ == filled_ && !fill()) return end;
    const int byte = static_cast<unsigned char>(buffer_[next_++]);
    lines_ += byte == '\n';
    return byte;
  }
  // The rest of the line without its end; false at the end of the file.
  bool get_line(std::string& line);
  // The line that the next byte is in, from 1, and FILE:LINE for messages.
  std::uint64_t line() const { return lines_ + 1; }
  std::string place(std::uint64_t line) const;

 private:
  bool fill();
  bool read_more();

  std::string name_;
  GunzipStream stream_;
  std::array<char, 64 << 10> buffer_;
  std::size_t next_ = 0, filled_ = 0;
  std::uint64_t lines_ = 0;
};

// What a row may hold; more of it is an unclosed quote or no list at all.
inline constexpr std::size_t max_row_bytes = 64 << 20;

}  // namespace millrace
