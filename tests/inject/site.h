#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "spec.h"

// The calls of a run that can go wrong, out of what `--inject count=FOLDER` has written.
namespace millrace::inject {

namespace fs = std::filesystem;

// The N-th call of its kind on one file by one rank: found again in the next run, whatever the threads do meanwhile.
struct Site {
  std::optional<int> rank;  // none: of whichever rank comes first
  Call call = Call::write;
  std::string path;  // below the folder that is looked at; empty: the folder itself
  int number = 1;

  // `folder`: the name of that folder. A disk that is full there stays full.
  Spec fault(Kind kind, const std::string& folder) const;
};

// Every call by which a rank changed something below `folder`. Of the writes of one file the first, a middle one and
// the last: what lies between looks the same on the disk.
std::vector<Site> read_sites(const fs::path& count_folder, int ranks, const fs::path& folder);

}  // namespace millrace::inject
