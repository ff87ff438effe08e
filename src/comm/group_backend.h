#pragma once
#include "millrace/comm/group.h"

namespace millrace {

enum class Reduction { sum, max };

// What a Group stands for: MPI ranks, or this process alone. Group documents the calls.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::shared_ptr<GroupBackend> split(int color, int key) const = 0;
  virtual std::shared_ptr<GroupBackend> duplicate() const = 0;
  virtual void set_time_limit(double seconds) = 0;
  virtual double limit_seconds() const = 0;
  virtual void barrier() const = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) const = 0;
  virtual void all_reduce(std::span<double> values, Reduction reduction) const = 0;
  virtual void all_reduce(std::span<std::int64_t> values, Reduction reduction) const = 0;
  virtual std::vector<std::string> gather_strings(const std::string& mine) const = 0;
  virtual std::vector<std::string> all_gather_strings(const std::string& mine) const = 0;
  virtual Transfer receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner) const = 0;
  virtual Transfer sender(int to, int tag, std::span<const std::byte> from) const = 0;
};

std::shared_ptr<GroupBackend> make_solo_group();

}  // namespace millrace
