#pragma once
#include <archive.h>

#include <memory>

namespace millrace {

struct CloseArchive {
  void operator()(archive* a) const { archive_free(a); }
};

// An archive of libarchive, for reading or for writing.
using ArchiveHandle = std::unique_ptr<archive, CloseArchive>;

}  // namespace millrace
