#pragma once
#include <optional>
#include <vector>

#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

// NOTE [Who writes what] A state of S shards exists R times, once in each replica. A checkpoint has at most `max_files`
// files of tensors, each written by one trainer. If there are no more trainers than that, each writes one R-th of its
// shard. Otherwise only as many whole replicas write as there may be files; if even one replica has too many shards,
// neighbouring shards share a file, which the first of their trainers writes for all.
class FilePlan {
 public:
  FilePlan(const FlatLayout& layout, const ShardPlan& plan, int max_files);

  int files() const { return files_; }
  // The trainers whose parts are in a file, in order; the first of them writes it.
  std::vector<int> trainers_of(int file) const;
  int writer_of(int file) const { return trainers_of(file).front(); }
  // The file that holds the part of a trainer; nothing if its replica does not write.
  std::optional<int> file_of(int trainer) const;
  // The slices of each kind of state that a trainer contributes; none if it has no file.
  std::vector<Slice> part_of(int trainer) const;
  // The slices of each kind of state in a file, one per parameter, by name; their `bucket` and `shard_offset` mean
  // nothing.
  std::vector<Slice> slices_of(int file) const;

 private:
  FlatLayout layout_;
  ShardPlan plan_;
  int shards_per_file_ = 1, writing_replicas_ = 1, files_ = 1;
};

}  // namespace millrace
