#pragma once
#include <chrono>
#include <ctime>
#include <string>

namespace millrace {

// Wall time since 1970, as files and Slurm tell it. To measure how long something takes: Stopwatch.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// "2026-11-23T20:15:00Z", as files tell people.
std::string utc_of(std::time_t time);
std::string utc_now();

}  // namespace millrace
