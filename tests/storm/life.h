#pragma once
#include <optional>

#include "case.h"
#include "process.h"

// The program's lives: how it is started, when it is stopped, and what each end must look like.
namespace millrace::storm {

// What all cases share.
struct Workshop {
  fs::path millrace, folder, pipeline;
  bool shuffle_block = true;  // false: a program from before data.shuffle_block
  double limit = 90;          // seconds of one life
};

// The folder of one case, and everything that was started in it.
struct Site {
  const Workshop& workshop;
  const Case& drawn;
  fs::path folder;
  std::vector<std::string> transcript;  // commands, for a person who repeats them

  fs::path archives() const { return folder / "archives"; }
  fs::path cache() const { return folder / "cache"; }
};

using Troubles = std::vector<std::string>;

// Fills the cache that the case starts from, where there is one.
Troubles prepare_cache(Site& site);

// One life of the run `name`, with the case's encodings or, as the straight runs, `from_images`.
Troubles live(Site& site, const std::string& name, const Life& life, bool from_images = false);

// The newest step that stands in metrics.jsonl, 0 when there is none.
int last_step(const fs::path& run);
// The newest checkpoint, 0 when there is none.
int last_checkpoint(const fs::path& run);

}  // namespace millrace::storm
