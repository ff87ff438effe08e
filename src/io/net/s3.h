#pragma once
#include <memory>
#include <string>
#include <vector>

#include "millrace/io/net/stream.h"

namespace arrow {
class Status;
}
namespace arrow::io {
class RandomAccessFile;
}

// Objects behind s3://BUCKET/KEY, through Arrow's file system. Errors are Error(io) naming the address, StorageError
// when the store may answer at another time.
namespace millrace {

std::shared_ptr<arrow::io::RandomAccessFile> open_s3_file(const std::string& url);
std::unique_ptr<ByteStream> open_s3_stream(const std::string& url);
// A connection or a store that failed, after Arrow's own retries; not an object or a permission that is missing.
bool is_s3_fault(const arrow::Status& status);
// Names of the objects right below s3://BUCKET/FOLDER/, without those of folders in it.
std::vector<std::string> list_s3_folder(const std::string& url);

}  // namespace millrace
