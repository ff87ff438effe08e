#pragma once
#include "trial.h"

// A trial of `millrace train`: afterwards the run must be bit for bit a straight one.
namespace millrace::inject {

// Who does what with which data; every life of a trial is alike.
struct Layout {
  std::string name;
  int ranks = 2, producers = 0;  // 0: every rank trains and produces
  bool tables = false;           // Parquet files for tars
};

struct TrainTrial {
  const Layout& layout;
  Start start = Start::fresh;
  std::vector<std::string> faults{};
  ExitCodes ending{};
  std::string lossy{};               // a side file that may lack lines afterwards
  bool silent = false;               // and nobody need say so
  std::vector<std::string> words{};  // more settings of the life with the fault
  bool damages = false;              // the newest checkpoint, so that the one before is used
  bool compares = true;              // whether a run with this fault must equal a straight one
  std::string says{};                // what the program has to say about it
};

// Straight and begun runs of `layout`: what its trials start from and are compared with.
void prepare(const Workshop& workshop, const Layout& layout);

// The calls by which a life from `start` changes the run's folder.
std::vector<Site> changing_calls(const Workshop& workshop, const Layout& layout, Start start);

// A fault at one of them.
std::string fault_at(const Site& site, Kind kind);

// Both must outlive it; so must the trial's layout.
Trial to_trial(const Workshop& workshop, const TrainTrial& trial);

}  // namespace millrace::inject
