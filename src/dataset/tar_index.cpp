#include "tar_index.h"

#include "key_counter.h"
#include "millrace/io/tar.h"

namespace millrace {

TarIndex index_tar(const std::string& path) {
  TarOptions names_only;
  names_only.fields = {"."};  // no field is called that
  TarReader tar(path, names_only);
  TarIndex index;
  KeyCounter keys;
  while (const std::optional<TarSample> sample = tar.next()) {
    if (const int occurrence = keys.add(sample->key); occurrence > 1) index.repeated[index.samples.size()] = occurrence;
    index.samples.push_back({sample->begin, sample->end});
    index.plain &= sample->end != 0;
  }
  if (tar.error()) index.broken = tar.error()->message;
  return index;
}

}  // namespace millrace
