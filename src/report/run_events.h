#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/report/run_record.h"

namespace millrace {

inline constexpr std::size_t most_warnings = 60;  // kinds of them

// By the logs of all ranks, RUN/fault, and what starts.jsonl keeps of it: starts, stops, steps back, faults, errors,
// and the most_warnings kinds of warnings that came last. Of `run` folder and starts must be known.
std::vector<Event> read_events(const RunRecord& run);

// Of a line of starts.jsonl, those that ended the life before; a list in any case.
nlohmann::json faults_before(const nlohmann::json& start);
// Seconds since 1970; nothing where it tells none that can be a date.
std::optional<double> time_of_fault(const nlohmann::json& fault);

// "2026-11-24T20:13:23Z" as "2026-11-24 20:13:23"; other text as it is.
std::string for_people(const std::string& utc);

}  // namespace millrace
