#include "text_file.h"

#include <span>

#include "file_stream.h"
#include "millrace/core/error.h"

namespace millrace {

TextFile::TextFile(const fs::path& path) : name_(path.string()), stream_(std::make_unique<FileStream>(name_)) {
  for (const int expected : {0xEF, 0xBB, 0xBF}) {  // a byte order mark
    if (get() == expected) continue;
    next_ = 0;
    break;
  }
  lines_ = 0;
}

bool TextFile::fill() try {
  next_ = filled_ = 0;
  filled_ = stream_.read(std::as_writable_bytes(std::span(buffer_)));
  return filled_ > 0;
} catch (const GzipError& error) {
  fail(Exit::io, "{}: {}", place(line()), error.what());
}

bool TextFile::get_line(std::string& line) {
  line.clear();
  int byte = get();
  if (byte == end) return false;
  for (; byte != '\n' && byte != end; byte = get()) {
    if (line.size() >= max_row_bytes) fail(Exit::io, "{}: a line of more than 64 MiB", place(lines_ + 1));
    line += static_cast<char>(byte);
  }
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

std::string TextFile::place(std::uint64_t line) const {
  return fmt::format("{}:{}", name_, line);
}

}  // namespace millrace
