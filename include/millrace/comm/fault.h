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
// From now on faults of this process are written. Call it before starting other threads that may fail, and again when
// more is known about this rank.
void report_to(Reporter where);

// Removes the files of earlier starts, as far as that is possible. Called by whoever opens the folder.
void remove_earlier(const std::filesystem::path& run_dir);

// Writes the file, once in a process: the first fault is the cause, later ones follow from it. Does nothing if the
// folder cannot be written.
void write(const Error& error);
// As write(), but ignores a suspect_node error that only says this rank timed out waiting: a fault file would exclude
// this host from the next start. One that blame_this_rank() was called for is written.
void write_own(const Error& error);
// As write(), on behalf of another rank, which cannot do so itself; `phase`, `step`: where it stood.
void write_about(const Reporter& rank, const Error& error, const char* phase, std::int64_t step);

// Call when training goes back and continues with all ranks: removes this rank's file, so that its next fault is a new
// cause.
void forget();

// Says that Exit::suspect_node errors of this process are about its own node, for instance because its GPU failed.
void blame_this_rank();
bool is_this_rank_to_blame();

// From now on an exception that ends the process at once is written like any other fault of this rank, printed on
// stderr, and becomes the exit code. Such are thrown by a destructor while another exception unwinds (LibTorch's do so
// for pinned memory when the GPU is gone), or by a thread that catches none. std::terminate without an exception still
// aborts.
void tell_at_terminate();

// Call in a catch block, before the stack unwinds. Writes this rank's fault file (write_own), unless all ranks agreed
// on the error or another rank reported it; bad data and numbers, on which all agree, are written by the rank that
// speaks_for_run. Ends the process in 60 s even if a destructor hangs, waiting for a rank or a file system that does
// not answer. Does nothing before report_to.
void begin_leaving();
// Call in a catch block too: whether this rank tells why the run failed. It is the lowest rank of those that agreed on
// the error, or the one with an error of its own.
bool speaks_for_run();

}  // namespace millrace::fault
