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

// Starts so many ranks of the program whose words follow.
Command mpirun(int ranks);

// What a command says; Error(io) with it when the command fails.
std::string output_of(const Command& command);

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
  // Whether the process is one of the job's and has not ended.
  bool owns(pid_t pid) const;
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

// The cores that this thread may use.
std::vector<int> cores();
// This thread, and the jobs that it starts. Every rank then has one thread, on any machine: the last bits of an
// encoding depend on the number of threads.
void stay_on(int core);
// Calls `work` in so many threads (0: one on each core), each of which stays on one of `cores`. Returns when all have.
void work_on(const std::vector<int>& cores, std::size_t threads, const std::function<void()>& work);

}  // namespace millrace::storm
