#pragma once
#include "trial.h"

// What is tried with `millrace train`.
namespace millrace::inject {

// A kill, a loss of power, an error and a full disk at each call by which lives from either start change the run's
// folder.
std::vector<Trial> plan_train_calls(const Workshop& workshop);

// One of each kind elsewhere: reading, hand-off, reductions, start-up and end.
std::vector<Trial> plan_train_places(const Workshop& workshop);

}  // namespace millrace::inject
