#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "millrace/core/error.h"

// Who left a run and why, for the script that starts it again: RUN/fault/rank-00003.json.
namespace millrace::fault {

struct Reporter {
  std::filesystem::path run_dir;
  int rank = 0;
  std::string host, role;
  std::string gpu = {};  // its UUID; empty on a CPU
};
// From now on faults of this process are written; called before other threads start that may have one, and again when
// more is known of this rank.
void report_to(Reporter where);

// Removes what ranks have written in starts before this one, as far as it can be removed: by whoever opens the folder.
void remove_earlier(const std::filesystem::path& run_dir);

// Writes the file, once in a process: the first fault is the cause, later ones follow from it. A folder that cannot be
// written is no reason to fail in another way.
void write(const Error& error);
// The same, unless this rank has only waited in vain for another one: so much is all that Exit::suspect_node says here,
// as when MPI cannot reach a rank that is gone. The file would cost this rank's host its place in the next start.
void write_own(const Error& error);
// The same about another rank, which cannot do so itself; `phase`, `step`: where it stood.
void write_about(const Reporter& rank, const Error& error, const char* phase, std::int64_t step);

// Training goes back and goes on with all ranks: what this one has written is over, and its next fault is a new cause.
void forget();

// An error of Exit::suspect_node here is about this rank's own node, a GPU that failed for one.
void blame_this_rank();
bool is_this_rank_to_blame();

// From now on an exception that ends the process at once, thrown by a destructor while another unwinds (LibTorch's do
// so of pinned memory when the GPU is gone) or by a thread that catches none, is written like one of this rank's own,
// told on stderr, and becomes the exit code. Without an exception the process aborts.
void tell_at_terminate();

// Call in a catch block, before the stack unwinds. Writes this rank's fault file (write_own), unless all ranks agreed
// on the error or it came from another rank (of bad data or numbers, on which all agree, the one that speaks_for_run
// has the file), and ends the process in 60 s even if a destructor hangs: it may wait for a rank or a file system that
// does not answer. Does nothing before report_to.
void begin_leaving();
// Call in a catch block too: whether this rank tells why the run failed. The lowest rank of those that agreed on the
// error does, or the one with an error of its own.
bool speaks_for_run();

}  // namespace millrace::fault
