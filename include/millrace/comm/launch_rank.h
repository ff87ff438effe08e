#pragma once
#include <optional>
#include <string>

namespace millrace {

// What launchers put into the environment, which is known before MPI is initialized.

// This process's rank; nothing if no launcher started it.
std::optional<std::string> launch_rank();

// Whether this is rank 0; also true without a launcher.
bool is_first_process();

// Whether its launcher tells an MPI library where the other processes are; srun does so only with an MPI plug-in.
bool is_launched_for_mpi();

// How many processes were started together; 0: the launcher does not say.
int launched_processes();

}  // namespace millrace
