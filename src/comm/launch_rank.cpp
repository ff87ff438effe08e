#include "millrace/comm/launch_rank.h"

#include <cstdlib>

namespace millrace {
namespace {

struct Launcher {
  const char* rank;
  const char* processes;  // null: it does not say
};

// The first that is set is the innermost: what mpirun starts in a step of Slurm inherits the variables of its daemon's.
constexpr Launcher mpi_launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},  // mpirun of Open MPI, jsrun
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},    // mpirun_rsh of MVAPICH
    {"PMIX_RANK", nullptr},                            // srun --mpi=pmix, prun
    {"PMI_RANK", "PMI_SIZE"},  // Hydra of MPICH and Intel MPI, PALS, Flux, srun --mpi=pmi2 or cray_shasta
    {"PALS_RANKID", nullptr},  // srun --mpi=cray_shasta before Slurm 23.02
};
constexpr Launcher slurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"};

}  // namespace

std::optional<std::string> launch_rank() {
  for (const auto& launcher : mpi_launchers)
    if (const char* rank = std::getenv(launcher.rank)) return rank;
  if (const char* rank = std::getenv(slurm.rank)) return rank;
  return std::nullopt;
}

bool is_launched_for_mpi() {
  for (const auto& launcher : mpi_launchers)
    if (std::getenv(launcher.rank)) return true;
  return false;
}

int launched_processes() {
  const auto said_by = [](const Launcher& launcher) {
    return std::getenv(launcher.rank) && launcher.processes ? std::getenv(launcher.processes) : nullptr;
  };
  for (const auto& launcher : mpi_launchers)
    if (const char* processes = said_by(launcher)) return std::atoi(processes);
  const char* const tasks = said_by(slurm);
  return tasks ? std::atoi(tasks) : 0;
}

}  // namespace millrace
