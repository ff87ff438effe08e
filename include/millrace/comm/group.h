#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/comm/transfer.h"
#include "millrace/core/error.h"

namespace millrace {

class GroupBackend;  // MPI or solo

// Some processes that talk to each other: a small handle, copied freely; the default one is a group of one. Collective
// calls must come in the same order on every rank, from the one thread that calls MPI, and carry what lies in host
// memory: decisions, texts, at a start the encoders' weights; what trainers exchange in a step goes through
// Collectives. A wait longer than `time_limit` throws Error(suspect_node) naming the call and rank.
class Group {
 public:
  Group();
  explicit Group(std::shared_ptr<GroupBackend> backend) : backend_(std::move(backend)) {}

  int rank() const;
  int size() const;
  bool is_root() const { return rank() == 0; }

  // Ranks of one color form a group, ordered by key, then by rank here. Collective.
  Group split(int color, int key) const;
  // The same ranks with messages of their own. Collective.
  Group duplicate() const;
  // Seconds that a collective may wait for the others; 1800 unless set. Handles split or duplicated from it share it.
  void set_time_limit(double seconds) const;
  double time_limit() const;

  void barrier() const;
  void broadcast(std::span<std::byte> bytes, int root = 0) const;
  std::string broadcast(std::string text, int root = 0) const;
  // Results have the same bits on every rank, so ranks may base decisions on them.
  void all_reduce_sum(std::span<double> values) const;
  void all_reduce_max(std::span<double> values) const;
  void all_reduce_sum(std::span<std::int64_t> values) const;
  void all_reduce_max(std::span<std::int64_t> values) const;
  // The largest or smallest of one number per rank; whether any rank says true.
  std::int64_t largest(std::int64_t mine) const;
  std::int64_t smallest(std::int64_t mine) const { return -largest(-mine); }
  bool any(bool mine) const { return largest(mine ? 1 : 0) != 0; }
  // Every rank's text in rank order: on rank 0 only (empty elsewhere), or on all.
  std::vector<std::string> gather_strings(const std::string& mine) const;
  std::vector<std::string> all_gather_strings(const std::string& mine) const;

  // Point to point (transfer.h). The memory must outlive the transfer; `owner` keeps it alive where the caller cannot
  // know for how long that is.
  Transfer receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner = {}) const;
  Transfer sender(int to, int tag, std::span<const std::byte> from) const;

  GroupBackend& backend() const { return *backend_; }

 private:
  std::shared_ptr<GroupBackend> backend_;
};

}  // namespace millrace
