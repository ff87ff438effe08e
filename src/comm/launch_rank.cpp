#include "millrace/comm/launch_rank.h"

#include <cstdlib>

namespace millrace {

std::optional<std::string> launch_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return rank;
  return std::nullopt;
}

}  // namespace millrace
