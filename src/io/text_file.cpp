#include "text_file.h"

#include <span>
#include <string_view>

#include "file_stream.h"
#include "millrace/core/error.h"

namespace millrace {

TextFile::TextFile(const fs::path& path) : name_(path.string()), stream_(std::make_unique<FileStream>(name_)) {
  constexpr std::string_view utf8 = "\xEF\xBB\xBF";  // byte order marks
  while (filled_ < utf8.size() && read_more()) {
  }
  const std::string_view start(buffer_.data(), filled_);
  if (start.starts_with("\xFF\xFE") || start.starts_with("\xFE\xFF"))
    throw Error(Exit::usage, fmt::format("{}: UTF-16", name_), "save it as UTF-8");  // as a whole: no damaged row
  if (start.starts_with(utf8)) next_ = utf8.size();
}

bool TextFile::fill() {
  next_ = filled_ = 0;
  return read_more();
}

bool TextFile::read_more() try {
  const auto bytes = stream_.read(std::as_writable_bytes(std::span(buffer_)).subspan(filled_));
  filled_ += bytes;
  return bytes > 0;
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
