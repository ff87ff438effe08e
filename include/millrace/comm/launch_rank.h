#pragma once
#include <optional>
#include <string>

namespace millrace {

// What launchers put into the environment, which is known before MPI is.

// This process's rank; nothing for a process that nobody launched.
std::optional<std::string> launch_rank();

// Also where nobody launched it.
bool is_first_process();

// Whether a launcher started it from which an MPI library learns where the others are. srun is one only with a plug-in.
bool is_launched_for_mpi();

// How many processes were started together; 0: the launcher does not say.
int launched_processes();

}  // namespace millrace
