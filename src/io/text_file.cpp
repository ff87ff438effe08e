#include "text_file.h"

#include <span>

#include "file_stream.h"
#include "millrace/core/error.h"

namespace millrace {

TextFile::TextFile(const fs::path& path) : name_(path.string()), stream_(std::make_unique<FileStream>(name_)) {
  const int first = get(), second = get();
  if ((first == 0xFF && second == 0xFE) || (first == 0xFE && second == 0xFF))
    throw Error(Exit::io, fmt::format("{}: UTF-16", name_), "save it as UTF-8");
  const bool has_mark = first == 0xEF && second == 0xBB && get() == 0xBF;  // of UTF-8's byte order
  if (!has_mark) next_ = 0;
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
