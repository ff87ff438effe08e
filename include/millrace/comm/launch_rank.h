#pragma once
#include <optional>
#include <string>

namespace millrace {

// This process's rank as mpirun or srun has put it into the environment, which is known before MPI is; nothing for a
// process that nobody launched.
std::optional<std::string> launch_rank();

}  // namespace millrace
