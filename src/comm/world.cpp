#include "millrace/comm/world.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "millrace/core/log.h"
#include "millrace/core/open_files.h"
#include "millrace/core/process_name.h"
#include "mpi_group.h"
#include "mpi_requests.h"

namespace millrace {
namespace {

constexpr double default_limit_seconds = 1800;

int rank_in_world = 0;

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;
}

// srun without a PMI plugin starts tasks that cannot find each other: each would train a model of its own.
void refuse_srun_without_pmi() {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  if (!is_set("SLURM_PROCID") || !tasks || std::atoi(tasks) < 2) return;
  throw Error(Exit::usage, fmt::format("srun started {} tasks without a way to find each other", tasks),
              "use srun --mpi=pmix, or start the run with mpirun");
}

// Copying straight between processes (CMA) is slower than shared memory in containers and virtual machines: 16 MB
// in 2.1 instead of 0.5 ms. A value that the user set stays.
void prefer_shared_memory() {
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
}

// Over TCP, MPI connects every rank with every other, by a socket or two.
void allow_sockets(int processes) {
  constexpr std::size_t for_each_process = 4;
  allow_open_files(for_each_process * static_cast<std::size_t>(std::max(processes, 0)));
}

// How many processes the launcher has started, as it says itself; 0: it does not. Open MPI's own word comes first: what
// mpirun starts under Slurm inherits that of its daemon's step.
int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

// Another MPI's launcher leaves each process a world of its own: each would do all of the work, into the same folder.
void refuse_alone_among_many(int launched) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > 1 || launched < 2) return;
  throw Error(
      Exit::usage,
      fmt::format("one of {} processes, but it cannot find the others: their launcher is of another MPI", launched),
      fmt::format("this program speaks {}: start it with its mpirun, or with srun --mpi=pmix; in a container bind "
                  "$PMIX_SERVER_TMPDIR",
                  mpi_version()));
}

Group join_world() {
  if (!World::launched()) {
    refuse_srun_without_pmi();
    return Group();
  }
  prefer_shared_memory();
  const int launched = launched_processes();  // before MPI sets variables of its own
  allow_sockets(launched);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error(Exit::usage, "this MPI cannot be called from different threads one at a time",
                "use an MPI library with MPI_THREAD_SERIALIZED");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  refuse_alone_among_many(launched);
  return Group(MpiGroup(MPI_COMM_WORLD, std::make_shared<double>(default_limit_seconds)).duplicate());
}

bool mpi_is_up() {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

}  // namespace

World::World()
    : uncaught_at_start_(std::uncaught_exceptions()),
      group_(join_world()),
      hosts_(group_.all_gather_strings(host_name())) {
  rank_in_world = group_.rank();
  // By name, not by MPI_COMM_TYPE_SHARED: the same answer for every rank and every implementation.
  local_rank_ = static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank(), host()));
}

World::~World() {
  if (!mpi_is_up()) return;
  if (std::uncaught_exceptions() > uncaught_at_start_) {
    log::error("rank {} leaves by an exception: all ranks end", rank());
    log::flush();
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(Exit::bug));
  }
  MPI_Finalize();
}

bool World::launched() {
  return is_set("OMPI_COMM_WORLD_SIZE") || is_set("PMIX_RANK") || is_set("PMI_RANK");
}

void World::abort(Exit exit) const {
  log::flush();
  if (mpi_is_up()) MPI_Abort(MPI_COMM_WORLD, static_cast<int>(exit));
  std::_Exit(static_cast<int>(exit));
}

int world_rank() {
  return rank_in_world;
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown";
  const std::string whole(text, static_cast<std::size_t>(length));
  return whole.substr(0, whole.find(','));
}

}  // namespace millrace
