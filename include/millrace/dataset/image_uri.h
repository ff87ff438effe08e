#pragma once
#include <cstdint>
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
// one cannot be had, the file that was read last is looked at: if that is gone, too, it is the storage.
class LastFile {
 public:
  void remember(const std::string& path);
  bool is_gone() const;

 private:
  mutable std::mutex mutex_;
  std::string path_;
};

// The bytes behind a path, an http(s) or an s3 address, at most `max_bytes`. `last`: of the same list; null: files are
// missing one by one. StorageError.
std::variant<std::string, LoadFailure> load_image(const std::string& uri, std::uint64_t max_bytes,
                                                  LastFile* last = nullptr);

}  // namespace millrace
