#include "parquet_input.h"

#include <arrow/io/file.h>
#include <arrow/util/io_util.h>

#include "millrace/core/storage_error.h"
#include "millrace/io/net/urls.h"
#include "net/s3.h"

namespace millrace {

namespace {

// Nothing when it is no matter of storage or network.
std::optional<std::string> storage_fault(const arrow::Status& failure) {
  if (const int code = arrow::internal::ErrnoFromStatus(failure); code != 0)
    return is_storage_fault(code) ? std::optional(errno_name(code)) : std::nullopt;
  if (is_s3_fault(failure)) return failure.message();
  return std::nullopt;
}

StorageError cannot_read(const std::string& url, const std::string& why) {
  return {url, why, fmt::format("cannot read {}: {}", url, why)};
}

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
  if (const auto why = storage_fault(file.status())) throw cannot_read(url, *why);
  fail(Exit::io, "{}: {}", url, file.status().message());
}

}  // namespace

ParquetInput::ParquetInput(const std::string& url, arrow::MemoryPool* pool) : url_(url), file_(open(url, pool)) {
  set_mode(arrow::io::FileMode::READ);
}

void ParquetInput::check_storage() const {
  if (why_) throw cannot_read(url_, *why_);
}

void ParquetInput::note(const arrow::Status& failure) {
  if (!why_) why_ = storage_fault(failure);
}

}  // namespace millrace
