#pragma once
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

// Starting a job of several processes, looking at them, and leaving none behind.
namespace millrace::storm {

namespace fs = std::filesystem;

struct Command {
  std::vector<std::string> words;
  std::string text() const;  // for a shell
};

struct Ending {
  int exit_code = 0;  // 128 + signal when that ended it
  bool timed_out = false;
  std::string picture;                 // timed_out: what every process was doing
  std::vector<std::string> survivors;  // processes that were still there seconds after the job's end, and were killed
};

// A started command. All its processes carry a mark of their own in their environment, by which they are found
// wherever the launcher puts them.
class Job {
 public:
  Job(const Command& command, const fs::path& output, const fs::path& temporary);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The processes of the program by their MPI rank; without a launcher the started one is rank 0.
  std::map<int, pid_t> ranks() const;
  // Waits for the end and calls `watch` every millisecond or two; kills everything when `seconds` are over.
  Ending wait(double seconds, const std::function<void(Job&)>& watch);

 private:
  std::vector<pid_t> processes() const;
  std::string picture() const;
  void kill_all() const;

  std::string mark_;
  bool under_mpirun_;
  pid_t launcher_ = -1;  // or the program itself
};

// Orphans of jobs become children of this process, which can then wait for their end. Once at the start.
void adopt_orphans();

}  // namespace millrace::storm
