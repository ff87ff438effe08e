#pragma once
#include <optional>

#include "case.h"
#include "workshop.h"

// The program's lives: how it is started, when it is stopped, and what each end must look like.
namespace millrace::storm {

// Of lives that were to get one, how many did: else each ends by itself, and says nothing about stops and kills.
struct Signals {
  int drawn = 0, sent = 0;
};

// The folder of one case, and everything that was started in it.
struct Site {
  const Workshop& workshop;
  const Case& drawn;
  fs::path folder;
  std::vector<std::string> transcript;  // commands, for a person who repeats them
  Signals signals;

  fs::path archives() const { return folder / "archives"; }
  fs::path cache() const { return folder / "cache"; }
};

// Fills the cache that the case starts from, where there is one.
Troubles prepare_cache(Site& site);

// One life of the run `name`, with the case's encodings or, as the straight runs, `from_images`.
Troubles live(Site& site, const std::string& name, const Life& life, bool from_images = false);

}  // namespace millrace::storm
