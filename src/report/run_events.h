#pragma once
#include <cstddef>
#include <filesystem>
#include <vector>

#include "millrace/report/run_record.h"

namespace millrace {

inline constexpr std::size_t most_warnings = 60;  // kinds of them

// By RUN/fault and rank 0's log: faults, starts, errors, steps back, and the most_warnings kinds of warnings
// that came last.
std::vector<Event> read_events(const std::filesystem::path& run_dir);

// "2026-11-24T20:13:23Z" as "2026-11-24 20:13:23"; other text as it is.
std::string for_people(const std::string& utc);

}  // namespace millrace
