#pragma once
#include "site.h"
#include "storm/case.h"
#include "storm/compare.h"

// One life with a fault, and the life after it.
namespace millrace::inject {

using storm::Troubles;

// What all trials share.
struct Workshop {
  fs::path millrace, injecting, folder, pipeline, archives;
  double limit = 60;  // seconds of one life
};

// Who does what; every life of a trial is alike.
struct Layout {
  std::string name;
  int ranks = 2, producers = 0;  // 0: every rank trains and produces
};

enum class Start { fresh, resumed };

constexpr int steps = 6, save_every = 2;

enum class Ending {
  killed,       // not with 0
  failed,       // with 74 or 75, or with 0 where the run could go on
  undisturbed,  // with 0
  hung          // with 76, or its neighbour with another
};

struct Trial {
  const Layout* layout = nullptr;
  Start start = Start::fresh;
  std::vector<std::string> faults{};
  Ending ending = Ending::failed;
  std::string lossy{};               // a side file that may lack lines afterwards
  bool silent = false;               // and nobody need say so
  std::vector<std::string> words{};  // more settings of the life with the fault
  bool damages = false;              // the newest checkpoint, so that the one before is used
  bool compares = true;              // whether a run with this fault must equal a straight one
  std::string says{};                // what the program has to say about it

  std::string describe() const;
};

// Straight and begun runs of `layout`: what its trials start from and are compared with.
void prepare(const Workshop& workshop, const Layout& layout);

// A kill, a loss of power, an error and a full disk at each call by which lives from either start change the folder.
std::vector<Trial> plan_calls(const Workshop& workshop, const Layout& layout);

// One of each kind elsewhere: reading, hand-off, reductions, start-up and end.
std::vector<Trial> plan_places(const Layout& layout);

// What is wrong with it. `folder` is the trial's own.
Troubles run_trial(const Workshop& workshop, const Trial& trial, const fs::path& folder);

}  // namespace millrace::inject
