#pragma once
#include <string>

#include "millrace/train/stages.h"
#include "run/roles.h"

namespace millrace {

// How trainers and producers got on with each other over the steps of a run.
struct Balance {
  double images_per_second = 0;         // trained, waits included
  double trainers_wait = 0;             // share of the trainers' time without samples, 0..1
  double encode_images_per_second = 0;  // of all producers, in the time in which they encode; 0 = nothing was encoded
  StageShares stages{};                 // of the producers
};

// Who waits for whom, and how many ranks, of what, would change that.
std::string describe(const Balance& balance, const Roles& roles);

}  // namespace millrace
