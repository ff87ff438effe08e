#include "millrace/io/tar_writer.h"

#include <archive_entry.h>

#include <algorithm>
#include <exception>

#include "archive_handle.h"
#include "millrace/core/error.h"
#include "thread_locale.h"

namespace millrace {

namespace {

struct FreeEntry {
  void operator()(archive_entry* entry) const { archive_entry_free(entry); }
};

}  // namespace

class TarWriter::Impl {
 public:
  explicit Impl(const fs::path& path) : path_(path), file_(path), archive_(archive_write_new()) {
    // "Restricted" is libarchive's word for: USTAR unless a member needs more.
    archive_write_set_format_pax_restricted(archive_.get());
    check(archive_write_open(archive_.get(), this, nullptr, &Impl::write_block, nullptr));
  }
  // What was not committed is given up; freeing the archive would still write its end.
  ~Impl() { given_up_ = true; }

  void write_member(const std::string& name, std::string_view bytes) {
    const ThreadLocale as_they_are(locale_for_writing_names());
    const std::unique_ptr<archive_entry, FreeEntry> entry(archive_entry_new());
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    archive_entry_set_mtime(entry.get(), 0, 0);
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
    check(archive_write_header(archive_.get(), entry.get()));
    const la_ssize_t written = archive_write_data(archive_.get(), bytes.data(), bytes.size());
    check(written == static_cast<la_ssize_t>(bytes.size()) ? ARCHIVE_OK : ARCHIVE_FATAL);
  }

  AtomicFile::Written commit() {
    check(archive_write_close(archive_.get()));
    return file_.commit();
  }

 private:
  // Exceptions must not pass through libarchive: the writer keeps the first for `check`, which every call ends with.
  // libarchive is never told, because it would not free an archive that failed.
  static la_ssize_t write_block(archive*, void* self, const void* data, std::size_t bytes) {
    auto& writer = *static_cast<Impl*>(self);
    try {
      if (!writer.given_up_ && !writer.failure_) writer.file_.write(data, bytes);
    } catch (...) {
      writer.failure_ = std::current_exception();
    }
    return static_cast<la_ssize_t>(bytes);
  }

  void check(int result) {
    if (failure_) std::rethrow_exception(failure_);
    if (result < ARCHIVE_WARN) fail(Exit::io, "cannot write {}: {}", path_.string(), words_for_error(archive_.get()));
  }

  fs::path path_;
  AtomicFile file_;
  std::exception_ptr failure_;
  bool given_up_ = false;
  ArchiveHandle archive_;
};

TarWriter::TarWriter(const fs::path& path) : impl_(std::make_unique<Impl>(path)) {}
TarWriter::~TarWriter() = default;

void TarWriter::write(const TarSample& sample) {
  std::vector<const std::pair<std::string, std::string>*> fields;
  for (const auto& field : sample.fields) fields.push_back(&field);
  std::sort(fields.begin(), fields.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  for (const auto* field : fields) write_member(sample.key + "." + field->first, field->second);
}

void TarWriter::write_member(const std::string& name, std::string_view bytes) {
  impl_->write_member(name, bytes);
}

AtomicFile::Written TarWriter::commit() {
  return impl_->commit();
}

}  // namespace millrace
