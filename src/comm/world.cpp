#include "millrace/comm/world.h"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>

#include "millrace/comm/launch_rank.h"
#include "millrace/core/log.h"
#include "millrace/core/open_files.h"
#include "millrace/core/process_name.h"
#include "mpi_group.h"
#include "mpi_requests.h"

namespace millrace {
namespace {

constexpr double default_limit_seconds = 1800;

int rank_in_world = 0;

bool is_open_mpi() {
  return mpi_version().starts_with("Open MPI");
}

// srun without a plug-in for Open MPI starts tasks that cannot find each other: each would train a model of its own.
void refuse_srun_without_plugin() {
  const int tasks = launched_processes();
  if (tasks < 2) return;
  throw Error(Exit::usage, fmt::format("srun started {} tasks without a way to find each other", tasks),
              "use srun --mpi=pmix, or start the run with mpirun");
}

// Copying straight between processes (CMA) is slower than shared memory in containers and virtual machines: 16 MB
// in 2.1 instead of 0.5 ms. A value that the user set stays.
void prefer_shared_memory() {
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);  // Open MPI 4
  setenv("OMPI_MCA_smsc", "^cma", 0);                             // 5
}

// Over TCP, MPI connects every rank with every other, by a socket or two.
void allow_sockets(int processes) {
  constexpr std::size_t for_each_process = 4;
  allow_open_files(for_each_process * static_cast<std::size_t>(std::max(processes, 0)));
}

// Another MPI's launcher leaves each process a world of its own: each would do all of the work, into the same folder.
void refuse_alone_among_many(int launched) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size > 1 || launched < 2) return;
  throw Error(
      Exit::usage,
      fmt::format("one of {} processes, but it cannot find the others: their launcher is of another MPI", launched),
      fmt::format(
          "this program speaks {}: start it with its launcher, or with srun --mpi=PLUGIN (srun --mpi=list): pmix "
          "for Open MPI, pmi2 for MPICH, Intel MPI and MVAPICH, cray_shasta for Cray MPICH; in a container bind "
          "$PMIX_SERVER_TMPDIR",
          mpi_version()));
}

Group join_world() {
  if (!World::launched()) {
    refuse_srun_without_plugin();
    return Group();
  }
  prefer_shared_memory();
  const int launched = launched_processes();  // before MPI sets variables of its own
  allow_sockets(launched);
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided));
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw Error(Exit::usage, "this MPI cannot be called from different threads one at a time",
                "use an MPI library with MPI_THREAD_SERIALIZED");
  }
  // Since MPI 4, errors of requests and other calls without a communicator go to that of the process alone.
  for (const MPI_Comm comm : {MPI_COMM_WORLD, MPI_COMM_SELF}) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
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
  // Other libraries also find each other by what srun itself says (PMI-1).
  return is_launched_for_mpi() || (!is_open_mpi() && launched_processes() > 1);
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
  // Some write pages: "MPICH Version:\t4.0.2\nMPICH Release date: ...".
  std::string version(text, static_cast<std::size_t>(length));
  version.resize(std::min(version.find_first_of(",\n"), version.size()));
  std::ranges::replace(version, '\t', ' ');
  return version;
}

}  // namespace millrace
