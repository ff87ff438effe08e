#include "millrace/comm/launch_rank.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace millrace {
namespace {

struct Launcher {
  const char* rank;
  const char* processes;  // null: it does not say
  bool is_for_mpi = true;
};

// The first that is set is the innermost: what mpirun starts in a step of Slurm inherits the variables of its daemon's.
constexpr Launcher launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},  // mpirun of Open MPI, jsrun
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},    // mpirun_rsh of MVAPICH
    {"PMIX_RANK", nullptr},                            // srun --mpi=pmix, prun
    {"PMI_RANK", "PMI_SIZE"},  // Hydra of MPICH and Intel MPI, PALS, Flux, srun --mpi=pmi2 or cray_shasta
    {"PALS_RANKID", nullptr},  // srun --mpi=cray_shasta before Slurm 23.02
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", /*is_for_mpi=*/false},  // srun itself
};

const Launcher* innermost_launcher() {
  const auto found =
      std::ranges::find_if(launchers, [](const Launcher& one) { return std::getenv(one.rank) != nullptr; });
  return found == std::end(launchers) ? nullptr : found;
}

}  // namespace

std::optional<std::string> launch_rank() {
  const auto* const launcher = innermost_launcher();
  return launcher ? std::optional<std::string>(std::getenv(launcher->rank)) : std::nullopt;
}

bool is_first_process() {
  return launch_rank().value_or("0") == "0";
}

bool is_launched_for_mpi() {
  const auto* const launcher = innermost_launcher();
  return launcher && launcher->is_for_mpi;
}

int launched_processes() {
  for (const auto& launcher : launchers) {
    if (!std::getenv(launcher.rank) || !launcher.processes) continue;
    if (const char* processes = std::getenv(launcher.processes)) return std::atoi(processes);
  }
  return 0;
}

}  // namespace millrace
