#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/config.h"
#include "millrace/core/hash.h"
#include "millrace/data/config.h"

// What there is to read, and how it is cut into units that stripes can own.
namespace millrace {

struct Archive {
  std::string path;                    // what is opened: braces and directories are already expanded
  std::string name;                    // ARCHIVE of its samples' ids
  std::uint64_t bytes = 0;             // 0 = unknown (a stream)
  bool seekable = false;               // cheap to skip in, so several lanes may read it
  std::optional<std::uint64_t> rows;   // counted only where lanes ask for it, and only as far, see count_rows
  std::optional<std::uint64_t> limit;  // rows beyond this are not used (data.limit)
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

// Expands the paths of `source`, names the archives and applies `limit`. Error(io) for what is missing, Error(usage)
// for an empty list, a path given twice, or a pipe: without `allow_pipes`.
Manifest make_manifest(const SourceConfig& source, bool allow_pipes);

// ARCHIVE for each path: the file name without directories and archive suffixes, with as many directories in front as
// it takes to tell equal names apart; a pipe's last word that looks like an archive, else pipe-N. Error(usage) naming
// `section` for a path that is given twice.
std::vector<std::string> archive_names(const std::vector<std::string>& paths,
                                       const std::string& section = "data.train");

inline constexpr int max_stripes = 512;  // of those that are planned; data.stripes may ask for more

// The part of an archive that is read in one go: all samples, or (lanes > 1) those whose number modulo `lanes` is
// `lane`.
struct Unit {
  std::uint32_t archive = 0;  // index into Manifest::archives
  std::uint32_t lane = 0, lanes = 1;
  bool operator==(const Unit&) const = default;
};

struct StripePlan {
  std::uint32_t stripes = 1;
  std::vector<Unit> units;  // sorted by archive name, then lane
  bool operator==(const StripePlan&) const = default;
};

// Whether plan_stripes has to know how many rows the archives hold, because lanes are needed.
bool needs_rows(int global_batch, const config::Auto<int>& stripes, const Manifest& manifest);
// Fills `rows` of the seekable archives by reading headers, of each up to as many as there can be stripes: an archive
// with more rows than that may well be cut into one lane per stripe, and so counts no further.
void count_rows(Manifest& manifest, const config::Auto<int>& stripes = {});

// S stripes, a rule on the global batch and the archives and never on the ranks: the largest divisor of the global
// batch up to max_stripes for which every stripe gets a unit with rows in it. While archives are fewer than stripes,
// seekable ones are cut into lanes. Error(usage) when an explicit `stripes` does not divide the batch or cannot be fed.
StripePlan plan_stripes(int global_batch, const config::Auto<int>& stripes, const Manifest& manifest);

// Manifest and plan as rank 0 made them, for the other ranks (so that a thousand ranks do not list one directory).
struct DataPlan {
  Manifest manifest;
  StripePlan stripes;
  bool operator==(const DataPlan&) const = default;
};
DataPlan make_data_plan(const SourceConfig& source, const DataConfig& config, int global_batch);
std::string to_bytes(const DataPlan& plan);
DataPlan data_plan_from_bytes(std::string_view bytes);

}  // namespace millrace
