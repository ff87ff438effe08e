#pragma once
#include <cstdlib>
#include <limits>
#include <optional>

// What the environment says of the job this process runs in.
namespace millrace::slurm {

// SLURM_JOB_ID or the like; nothing outside of a job.
inline std::optional<long long> number(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  return std::atoll(text);
}

// When its time is up, in Unix seconds: MILLRACE_END_TIME, which slurm/requeue.sh sets, or what newer Slurms say
// themselves. Infinite outside of a job, and where nobody says.
inline double job_end() {
  for (const char* name : {"MILLRACE_END_TIME", "SLURM_JOB_END_TIME"})
    if (const char* text = std::getenv(name); text && std::atof(text) > 0) return std::atof(text);
  return std::numeric_limits<double>::infinity();
}

}  // namespace millrace::slurm
