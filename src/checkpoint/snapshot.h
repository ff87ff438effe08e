#pragma once
#include <torch/types.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "millrace/checkpoint/file_plan.h"
#include "millrace/comm/collectives.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

// The tensors in a trainer's file of a checkpoint, and a copy of them in host memory that training does not change.
class Snapshot {
 public:
  // `kinds`: of the optimizer's state. Collective over the trainers.
  Snapshot(FilePlan files, std::vector<std::string> kinds, const Group& trainers);

  // One tensor of the file: elements [slice.begin, slice.end) of a parameter.
  struct Entry {
    std::string kind;
    Slice slice;
    std::int64_t offset = 0;  // elements before it in the file
  };
  const std::vector<std::string>& kinds() const { return kinds_; }
  // By key, in the order of the file; empty for a trainer that writes none.
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // Host memory that `copy` needs on this rank; it is kept between saves. Pinned where the state is on a GPU: LibTorch
  // rounds such pieces up to a power of two.
  std::uint64_t bytes(bool pinned) const;
  // Error(io) where that is refused: no fault of the node, as it would be in the middle of a step.
  void allocate(bool pinned);
  void release();
  // Collective over the trainers: who writes a file gets the parts of the others.
  void copy(const ShardedAdamW& optimizer);
  // (n) fp32, a view into the copy.
  torch::Tensor copied(const Entry& entry) const;
  // The same directly from the optimizer, on the host; for a trainer whose file holds its own part alone.
  static torch::Tensor present(const ShardedAdamW& optimizer, const Entry& entry);

 private:
  // A trainer's part of an entry.
  struct Piece {
    const Entry* entry = nullptr;  // nothing on a trainer that does not write
    std::string kind;
    Slice slice;
    std::int64_t elements() const { return slice.end - slice.begin; }
  };
  std::vector<Piece> pieces_of(int trainer) const;
  std::span<float> place_of(const Piece& piece) const;
  void pass_parts(const ShardedAdamW& optimizer);

  FilePlan files_;
  std::vector<std::string> kinds_;
  int trainer_;
  std::vector<int> mates_;                    // the trainers of the file
  std::unique_ptr<Collectives> among_mates_;  // if files have several trainers
  std::map<std::string, Entry> entries_;
  std::int64_t file_elements_ = 0, passed_elements_ = 0;
  torch::Tensor file_, passed_;  // (file_elements_), (passed_elements_): the file; a mate's part on its way
};

}  // namespace millrace
