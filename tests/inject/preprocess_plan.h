#pragma once
#include "trial.h"

// Trials of `millrace preprocess`: afterwards a cache must be file for file a straight one.
namespace millrace::inject {

// A kill, a loss of power, an error and a full disk at each call by which lives from either start change the cache.
std::vector<Trial> plan_preprocess_calls(const Workshop& workshop);

}  // namespace millrace::inject
