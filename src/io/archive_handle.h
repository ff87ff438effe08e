#pragma once
#include <archive.h>

#include <memory>

namespace millrace {

struct CloseArchive {
  void operator()(archive* a) const { archive_free(a); }
};

// An archive of libarchive, for reading or for writing.
using ArchiveHandle = std::unique_ptr<archive, CloseArchive>;

// What went wrong last. libarchive has no words for some failures, such as a gzip trailer that is cut short.
inline const char* words_for_error(archive* a) {
  const char* const words = archive_error_string(a);
  return words ? words : "unreadable";
}

}  // namespace millrace
