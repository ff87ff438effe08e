#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "spec.h"

// The calls of a run that can go wrong, out of what `--inject count=FOLDER` has written.
namespace millrace::inject {

namespace fs = std::filesystem;

// The N-th call of its kind on one file by one rank: found again in the next run, whatever the threads do meanwhile.
struct Site {
  int rank = 0;
  Call call = Call::write;
  std::string path;  // below the run's folder; empty: the folder itself
  int number = 1;
  std::string phase;
  int step = 0;

  // `run`: the name of the run's folder.
  Spec fault(Kind kind, const std::string& run, bool onwards) const;
};

// Every call by which a rank changed something below `run`. Of the writes of one file the first, a middle one and the
// last: what lies between looks the same on the disk.
std::vector<Site> read_sites(const fs::path& count_folder, int ranks, const fs::path& run);

}  // namespace millrace::inject
