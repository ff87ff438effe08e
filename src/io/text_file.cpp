#include "text_file.h"

#include <archive_entry.h>

#include "millrace/core/error.h"

namespace millrace {

TextFile::TextFile(const fs::path& path) : name_(path.string()), input_(name_), archive_(archive_read_new()) {
  archive_read_support_filter_gzip(archive_.get());
  archive_read_support_format_raw(archive_.get());
  archive_read_support_format_empty(archive_.get());
  archive_entry* entry = nullptr;
  const bool opened = input_.open(archive_.get()) == ARCHIVE_OK;
  const int first = opened ? archive_read_next_header(archive_.get(), &entry) : ARCHIVE_FATAL;
  if (first < ARCHIVE_WARN) input_.check_storage();
  if (first < ARCHIVE_WARN) fail(Exit::io, "cannot read {}: {}", name_, words_for_error(archive_.get()));
  if (first == ARCHIVE_EOF) archive_.reset();      // an empty file
  for (const int expected : {0xEF, 0xBB, 0xBF}) {  // a byte order mark
    if (get() == expected) continue;
    next_ = 0;
    break;
  }
  lines_ = 0;
}

bool TextFile::fill() {
  if (!archive_) return false;
  const la_ssize_t got = archive_read_data(archive_.get(), buffer_.data(), buffer_.size());
  if (got <= 0) input_.check_storage();
  if (got < 0) fail(Exit::io, "{}: {}", place(line()), words_for_error(archive_.get()));
  next_ = 0;
  filled_ = static_cast<std::size_t>(got);
  return filled_ > 0;
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
