#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/io/net/stream.h"

namespace arrow {
class Status;
}
namespace arrow::io {
class RandomAccessFile;
}

// Objects behind s3://BUCKET/KEY, through Arrow's file system. Errors are AccessErrors naming the address,
// StorageErrors unless there is no such object, RefusedErrors where the store does not give it.
namespace millrace {

std::shared_ptr<arrow::io::RandomAccessFile> open_s3_file(const std::string& url);
std::unique_ptr<ByteStream> open_s3_stream(const std::string& url);
// Whether the store or the way to it failed, not who asked: an object that is missing or closed, a connection that
// stayed away through Arrow's own retries.
bool is_of_s3(const arrow::Status& status);
// Whether a store has answered that it does not give this object: by 4xx, in Arrow's words. 400 is also what an
// old token gets, which is renewed, and 407 what a proxy answers.
bool is_final_answer(std::string_view why);
// NOTE [Refused by S3] has which refusals are RefusedErrors.
[[noreturn]] void fail_s3(const arrow::Status& status, const std::string& url);
// Names of the objects right below s3://BUCKET/FOLDER/, without those of folders in it.
std::vector<std::string> list_s3_folder(const std::string& url);

}  // namespace millrace
