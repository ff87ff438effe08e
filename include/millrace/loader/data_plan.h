#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"

// What a run reads and how it is cut into stripes: made once, the same on every rank.
namespace millrace {

inline constexpr int max_stripes = 512;  // with data.stripes=auto; a number may be larger

// The largest divisor of the global batch up to max_stripes: the number of stripes if there are archives enough.
int most_stripes(int global_batch);

struct StripePlan {
  std::uint32_t stripes = 1;
  std::vector<Split> splits;  // sorted by archive name, then split
  bool operator==(const StripePlan&) const = default;
};

// Chooses the number of stripes by the global batch and the archives, never by the ranks: `wanted`, or the largest
// divisor of the global batch up to max_stripes for which every stripe gets a split. If archives are fewer than
// stripes, seekable ones are cut into splits that are not empty; else each archive is one split, and nobody has looked
// whether it is empty. Error(usage) when an explicit `wanted` does not divide the batch or cannot be fed.
StripePlan plan_stripes(int global_batch, const config::Auto<int>& wanted, const Manifest& manifest);

// Fraction of rows still unseen after as many samples as there are rows, if all splits are of one size; the same
// fraction has then been seen twice. (Stripes with fewer splits begin their next epoch earlier.)
double unseen_after_one_pass(const StripePlan& plan);

// For one pass without batches: one stripe for each of `ranks`, or as many as can be fed, cut in the same way.
StripePlan plan_shares(int ranks, const Manifest& manifest);

// Manifest and plan as rank 0 made them, for the other ranks (so that a thousand ranks do not list one directory).
struct DataPlan {
  Manifest manifest;
  StripePlan stripes;
  bool operator==(const DataPlan&) const = default;
};
DataPlan make_data_plan(const SourceConfig& source, const DataConfig& config, int global_batch);
DataPlan make_shares(const SourceConfig& source, const DataConfig& config, int ranks);
std::string to_bytes(const DataPlan& plan);
DataPlan data_plan_from_bytes(std::string_view bytes);

}  // namespace millrace
