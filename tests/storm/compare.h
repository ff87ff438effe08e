#pragma once
#include "archives.h"
#include "workshop.h"

// What a run must have in common with a straight one, and with the truth about its archives.
namespace millrace::storm {

// Every whole line of `run`'s ids.jsonl is `reference`'s.
Troubles compare_ids(const fs::path& run, const fs::path& reference);

// All of it: `steps` lines of ids and metrics, the same losses, weights, optimizer and places in the data. `to_the_bit`
// = both were computed alike.
Troubles compare_runs(const fs::path& run, const fs::path& reference, int steps, bool to_the_bit);

// How far the last weights lie apart: L2 norm of the difference over that of the reference's.
double weights_apart(const fs::path& run, const fs::path& reference, int steps);

// Samples and ledger of a run that ended after step `steps`, against what is in the archives.
Troubles check_samples(const fs::path& run, const Truth& truth, int steps);

}  // namespace millrace::storm
