#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/core/hash.h"
#include "millrace/dataset/data_config.h"

// What there is to read, and how it is cut into splits that stripes can own.
namespace millrace {

struct Archive {
  std::string path;                    // what is opened: braces and directories are already expanded
  std::string name;                    // ARCHIVE of its samples' ids
  std::uint64_t bytes = 0;             // 0 = unknown (a stream)
  bool seekable = false;               // cheap to skip in, so several splits may read it
  std::optional<std::uint64_t> rows;   // counted only where splits ask for it, and only as far, see count_rows
  std::optional<std::uint64_t> limit;  // rows beyond this are not used (data.train.limit)
  bool operator==(const Archive&) const = default;
};

struct Manifest {
  std::vector<Archive> archives;  // sorted by name

  // A line per archive, `NAME<tab>BYTES<tab>LIMIT` with -1 for no limit: what a run keeps to tell later what has
  // changed.
  std::string listing() const;
  // XXH3-128 of the listing: changes when the data behind a run change.
  Hash128 digest() const;
  bool operator==(const Manifest&) const = default;
};

// What became of the archives of one listing in another: added, removed, of another size, with other limits; a line
// each, naming the first few.
std::vector<std::string> listing_changes(std::string_view before, std::string_view after);

// Expands the paths of `source`, names the archives and applies `limit`; of Parquet latents and every type that holds
// images. Error(io) for what is missing, Error(usage) for an empty list, a path given twice, or a pipe: without
// `allow_pipes`, Error(requeue) when told to stop while the rows of a limit are counted.
Manifest list_archives(const SourceConfig& source, bool allow_pipes);

// Fills `rows` of the seekable archives by reading headers, of each up to `most`.
void count_rows(Manifest& manifest, std::uint64_t most);

// The part of an archive that is read in one go: all samples, or (count > 1) those whose number modulo `count` is
// `index`.
struct Split {
  std::uint32_t archive = 0;  // index into Manifest::archives
  std::uint32_t index = 0, count = 1;
  // The archive's row that is the split's `number`-th.
  std::uint64_t row(std::uint64_t number) const { return index + number * count; }
  bool operator==(const Split&) const = default;
};

}  // namespace millrace
