#include "millrace/checkpoint/file_plan.h"

#include <algorithm>
#include <map>
#include <string>

#include "millrace/core/error.h"

namespace millrace {

FilePlan::FilePlan(const FlatLayout& layout, const ShardPlan& plan, int max_files) : layout_(layout), plan_(plan) {
  ensure(max_files > 0, "a checkpoint has a file");
  shards_per_file_ = (plan.shards + max_files - 1) / max_files;
  writing_replicas_ = std::clamp(max_files / plan.shards, 1, plan.replicas);
  files_ = writing_replicas_ * ((plan.shards + shards_per_file_ - 1) / shards_per_file_);
}

std::vector<int> FilePlan::trainers_of(int file) const {
  if (shards_per_file_ == 1) return {file};
  std::vector<int> trainers;
  const int first = file * shards_per_file_, end = std::min(first + shards_per_file_, plan_.shards);
  for (int trainer = first; trainer < end; ++trainer) trainers.push_back(trainer);
  return trainers;
}

std::optional<int> FilePlan::file_of(int trainer) const {
  if (plan_.replica_of(trainer) >= writing_replicas_) return std::nullopt;
  return trainer / shards_per_file_;
}

std::vector<Slice> FilePlan::part_of(int trainer) const {
  if (!file_of(trainer)) return {};
  return equal_part(slices_of_shard(layout_, plan_.shard_of(trainer)), plan_.replica_of(trainer), writing_replicas_);
}

std::vector<Slice> FilePlan::slices_of(int file) const {
  std::map<std::string, Slice> merged;
  for (const int trainer : trainers_of(file))
    for (const auto& slice : part_of(trainer)) {
      const auto [at, is_new] = merged.emplace(slice.name, slice);
      if (is_new) continue;
      ensure(at->second.end == slice.begin, "neighbouring shards hold neighbouring elements");
      at->second.end = slice.end;
    }
  std::vector<Slice> slices;
  for (auto& [name, slice] : merged) slices.push_back(std::move(slice));
  return slices;
}

}  // namespace millrace
