#pragma once
#include <cstdlib>
#include <optional>

namespace millrace {

// What Slurm says of this job in the environment, SLURM_JOB_ID or the like; nothing outside of a job.
inline std::optional<long long> slurm_number(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  return std::atoll(text);
}

}  // namespace millrace
