#pragma once
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/dataset/sample.h"

namespace millrace {

// A path or address in a list: absolute, or relative to the list's folder.
std::string resolve_uri(std::string_view uri, const std::string& list);

struct LoadFailure {
  RejectReason reason;  // missing_image or too_large
  std::string why;
};

// NOTE [Missing or away]: an image of a list that does not exist, or may not be read, is one bad row, unless all are:
// behind a mount that is gone every path is missing, and behind a ticket that has run out every file is closed. So when
// one cannot be had, the files that were read last in some other folders are looked at: if none can be read any more,
// it is the storage. Safe to use from several threads.
class LastFiles {
 public:
  void remember(const std::string& path);
  // Whether there were any, and none of them can be read.
  bool are_gone() const;

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> paths_;  // the latest first, each of another folder
};

// The bytes behind a path, an http(s) or an s3 address, at most `max_bytes`. `last`: of the same stream; null: files
// are missing one by one. StorageError.
std::variant<std::string, LoadFailure> load_image(const std::string& uri, std::uint64_t max_bytes,
                                                  LastFiles* last = nullptr);

}  // namespace millrace
