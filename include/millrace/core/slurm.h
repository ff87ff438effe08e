#pragma once
#include <cstdlib>
#include <limits>
#include <optional>

// What the environment says about the Slurm job this process runs in.
namespace millrace::slurm {

// The value of SLURM_JOB_ID or the like; nothing outside of a job.
inline std::optional<long long> number(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  return std::atoll(text);
}

struct JobEnd {
  double at = std::numeric_limits<double>::infinity();  // Unix seconds
  const char* variable = nullptr;                       // the environment variable that says so
};

// When the job's time is up: by MILLRACE_END_TIME, which slurm/requeue.sh sets, or by SLURM_JOB_END_TIME of newer
// Slurms; the first of these that lies after `now`, else one that is past. Infinite outside of a job, and if neither is
// set.
inline JobEnd job_end(double now) {
  JobEnd past;
  for (const char* name : {"MILLRACE_END_TIME", "SLURM_JOB_END_TIME"}) {
    const char* text = std::getenv(name);
    const double at = text ? std::atof(text) : 0;
    if (at > now) return {at, name};
    if (at > 0) past = {at, name};
  }
  return past;
}

}  // namespace millrace::slurm
