#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>

#include "evaluate/evaluate_job.h"

namespace millrace {

// Settings that make scores comparable: lines with other ones are made anew. `painted`: how many pictures the model
// paints.
nlohmann::ordered_json protocol_of(const EvaluateRoot& root, EvaluateJob::Source source, std::int64_t painted);

}  // namespace millrace
