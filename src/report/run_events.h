#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "millrace/report/run_record.h"

namespace millrace {

inline constexpr std::size_t most_warnings = 60;  // kinds of them

// By RUN/fault and the logs of rank 0 and the first trainer: faults, starts, errors, steps back, and the most_warnings
// kinds of warnings that came last. Of `run` folder and environment must be known.
std::vector<Event> read_events(const RunRecord& run);

// "2026-11-24T20:13:23Z" as "2026-11-24 20:13:23"; other text as it is.
std::string for_people(const std::string& utc);

}  // namespace millrace
