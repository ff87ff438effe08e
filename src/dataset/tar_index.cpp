#include "tar_index.h"

#include <sys/stat.h>

#include "key_counter.h"
#include "millrace/io/tar.h"

namespace millrace {

std::optional<FileStamp> stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  constexpr std::int64_t second = 1'000'000'000;
  return FileStamp{static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec * second + status.st_mtim.tv_nsec};
}

TarIndex index_tar(const std::string& path) {
  const FileStamp stamp = stamp_of(path).value_or(FileStamp());  // before the first look into it
  TarReader tar(path);
  TarIndex index;
  index.stamp = stamp;
  KeyCounter keys;
  while (const std::optional<TarSample> sample = tar.skip_one()) {
    if (const int occurrence = keys.add(sample->key); occurrence > 1) index.repeated[index.samples.size()] = occurrence;
    index.samples.push_back({sample->begin, sample->end});
    index.plain &= sample->end != 0;
  }
  if (tar.error()) index.broken = tar.error()->message;
  return index;
}

}  // namespace millrace
