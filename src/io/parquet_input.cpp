#include "parquet_input.h"

#include <arrow/io/file.h>
#include <arrow/util/io_util.h>

#include <algorithm>
#include <cerrno>

#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/net/urls.h"
#include "net/s3.h"

namespace millrace {

namespace {

std::shared_ptr<arrow::io::RandomAccessFile> open(const std::string& url, arrow::MemoryPool* pool) {
  if (is_s3(url)) return open_s3_file(url);
  const std::string path = local_path(url);
  if (path.empty()) {
    throw Error(Exit::io,
                fmt::format("{}: a Parquet file is read here and there, which this address does not allow", url),
                "use a file or s3://");
  }
  auto file = arrow::io::ReadableFile::Open(path, pool);
  if (file.ok()) return *file;
  errno = arrow::internal::ErrnoFromStatus(file.status());
  if (errno != 0) fail_errno("cannot open", path);
  fail(Exit::io, "{}: {}", url, file.status().message());
}

}  // namespace

ParquetInput::ParquetInput(const std::string& url, arrow::MemoryPool* pool)
    : url_(url), file_(open(url, pool)), bytes_(file_->GetSize().ValueOr(0)) {
  set_mode(arrow::io::FileMode::READ);
}

void ParquetInput::check_storage() const {
  if (shortened_) fail_shortened(url_);
  if (failure_.ok()) return;
  if (is_s3(url_)) fail_s3(failure_, url_);
  errno = arrow::internal::ErrnoFromStatus(failure_);
  fail_errno("cannot read", url_);
}

// A place beyond the end of the file has no errno: then the file tells wrong places.
void ParquetInput::note(const arrow::Status& failure) {
  const bool kept_away = is_s3(url_) ? is_of_s3(failure) : arrow::internal::ErrnoFromStatus(failure) != 0;
  if (failure_.ok() && kept_away) failure_ = failure;
}

void ParquetInput::expect(std::int64_t position, std::int64_t bytes, std::int64_t read) {
  shortened_ |= read < std::min(bytes, bytes_ - position);
}

}  // namespace millrace
