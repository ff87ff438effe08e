#pragma once
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/core/error.h"

namespace millrace {

// The process's place among all processes of the run; exactly one per process, made first in main and destroyed last.
// Under mpirun, srun or another launcher it brings MPI up (MPI_THREAD_SERIALIZED, errors returned, not fatal); alone it
// is a world of one that never touches MPI. The destructor ends MPI orderly, or aborts all ranks when it runs while an
// exception unwinds.
class World {
 public:
  World();
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // True when the environment says that a launcher started this process for MPI.
  static bool launched();

  // All ranks; modules take `group().duplicate()`, so that their messages never meet.
  const Group& group() const { return group_; }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool is_root() const { return group_.is_root(); }
  // Position among the ranks of this node.
  int local_rank() const { return local_rank_; }
  const std::string& host() const { return hosts_.at(rank()); }
  // Host name of every rank.
  const std::vector<std::string>& hosts() const { return hosts_; }

  // Ends every rank of the run with this exit code.
  [[noreturn]] void abort(Exit exit) const;

 private:
  int uncaught_at_start_;
  Group group_;
  int local_rank_ = 0;
  std::vector<std::string> hosts_;
};

struct RankOnHost {
  int rank = -1;  // in the world
  std::string host;
};

// This process's rank in the world, which messages name whatever group they come from; 0 before there is a World.
int world_rank();

// Name and version of the MPI library, for bug reports.
std::string mpi_version();

}  // namespace millrace
