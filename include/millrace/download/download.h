#pragma once
#include <string>

#include "millrace/comm/group.h"
#include "millrace/download/download_config.h"
#include "millrace/download/progress.h"

namespace millrace {

// What there is to do; reads the lists once and writes nothing. Error(usage, io) as run_download.
struct DownloadPlan {
  std::size_t lists = 0;
  std::uint64_t shards = 0, finished = 0;
};
DownloadPlan plan_download(const DownloadConfig& config);

// A variable of the environment that names a proxy, which `download` does not use; empty when none does.
std::string find_unused_proxy();

struct DownloadResult {
  bool finished = false;  // false: a signal ended it; a rerun resumes
  DownloadCounts counts;  // of all ranks
  double seconds = 0;
};

// Downloads the images of all lists into archives. Ranks take shards in turn; each is published as a whole,
// and what is finished is left alone. A signal to any rank ends all of them and drops the shards they are at.
// `threads` decode and resize on this rank. Error(usage) when the folder is not this download's, or a list lacks a
// column; Error(io) for what cannot be read or written, of a list once all that was read before is published.
// Collective.
DownloadResult run_download(const DownloadConfig& config, const Group& group, int threads);

}  // namespace millrace
