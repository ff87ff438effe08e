#pragma once
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace {

// The file behind a Parquet reader. What storage or network do to it passes through many layers, some of which keep
// only the words: the reader asks here.
class ParquetInput final : public arrow::io::RandomAccessFile {
 public:
  // A file or s3://. AccessError when it cannot be opened.
  ParquetInput(const std::string& url, arrow::MemoryPool* pool);

  // Throws the AccessError of a read that has failed, or NOTE [Cut short].
  void check_storage() const;

  arrow::Status Close() override { return file_->Close(); }
  bool closed() const override { return file_->closed(); }
  arrow::Result<std::int64_t> Tell() const override { return file_->Tell(); }
  arrow::Status Seek(std::int64_t position) override { return file_->Seek(position); }
  arrow::Result<std::int64_t> GetSize() override { return keep(file_->GetSize()); }
  arrow::Result<std::int64_t> Read(std::int64_t bytes, void* out) override { return keep(file_->Read(bytes, out)); }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t bytes) override { return keep(file_->Read(bytes)); }
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t bytes, void* out) override {
    auto read = keep(file_->ReadAt(position, bytes, out));
    if (read.ok()) expect(position, bytes, *read);
    return read;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position, std::int64_t bytes) override {
    auto read = keep(file_->ReadAt(position, bytes));
    if (read.ok()) expect(position, bytes, (*read)->size());
    return read;
  }

 private:
  template <class T>
  arrow::Result<T> keep(arrow::Result<T> result) {
    if (!result.ok()) note(result.status());
    return result;
  }
  void note(const arrow::Status& failure);
  // That `read` of the `bytes` from `position` on are as many as there were when it was opened.
  void expect(std::int64_t position, std::int64_t bytes, std::int64_t read);

  const std::string url_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  const std::int64_t bytes_;  // when it was opened
  bool shortened_ = false;
  arrow::Status failure_;  // of the first read that brought no bytes, for whatever reason but what they say
};

}  // namespace millrace
