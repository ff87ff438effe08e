#pragma once
#include <mpi.h>

#include "group_backend.h"

namespace millrace {

// Communicators are made a handful of times and live until MPI ends: freeing them would have every rank meet in a
// destructor, also when one of them is unwinding.
class MpiGroup final : public GroupBackend {
 public:
  MpiGroup(MPI_Comm comm, std::shared_ptr<double> limit_seconds);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::shared_ptr<GroupBackend> split(int color, int key) const override;
  std::shared_ptr<GroupBackend> duplicate() const override;
  void set_time_limit(double seconds) override { *limit_seconds_ = seconds; }
  double limit_seconds() const override { return *limit_seconds_; }
  void barrier() const override;
  void broadcast(std::span<std::byte> bytes, int root) const override;
  void all_reduce(std::span<double> values, Reduction reduction) const override;
  void all_reduce(std::span<std::int64_t> values, Reduction reduction) const override;
  std::vector<std::string> gather_strings(const std::string& mine) const override;
  std::vector<std::string> all_gather_strings(const std::string& mine) const override;
  Transfer receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner) const override;
  Transfer sender(int to, int tag, std::span<const std::byte> from) const override;

  MPI_Comm comm() const { return comm_; }
  void wait(MPI_Request request, const char* what) const;

 private:
  void all_reduce(void* values, std::size_t count, MPI_Datatype type, Reduction reduction) const;

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::shared_ptr<double> limit_seconds_;  // one for all that were split or duplicated from one another
};

}  // namespace millrace
