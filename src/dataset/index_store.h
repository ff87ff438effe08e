#pragma once
#include <optional>
#include <string>

#include "tar_index.h"

namespace millrace {

// NOTE [Indices on disk]
// The pass over the headers of a large tar takes seconds where every header is a request to a file server, and each
// process that reads a split of it needs it. So it is made once and kept in a small file: `.NAME.millrace-index` beside
// the archive, or in a folder of its own where many archives of one name would meet, so that there the name holds a
// digest of the path too. An index counts only for the size and the time of change that the archive had when it was
// made, and only if its own digest is right; one that cannot be written is done without. None is made of an archive
// that one reader has for itself, and enters in its middle: passing over the rows before reads half as much on average,
// and leaves nothing behind.
class IndexStore {
 public:
  // data.index: `beside`, `never` or a folder.
  explicit IndexStore(std::string folder) : folder_(std::move(folder)) {}

  // The index of the plain file `path`, read or made.
  TarIndex index_of(const std::string& path) const;
  // Made, whatever is kept, and kept.
  TarIndex make_index_of(const std::string& path) const;
  // Only one that is kept already.
  std::optional<TarIndex> try_index_of(const std::string& path) const;
  // Where it is kept; nothing for `never`.
  std::optional<std::string> file_of(const std::string& path) const;

 private:
  const std::string folder_;
};

}  // namespace millrace
