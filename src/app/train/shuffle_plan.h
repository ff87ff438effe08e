#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "launch/session.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "millrace/produce/encoding_plan.h"
#include "train/roles.h"
#include "train/routing.h"

// How rows are shuffled, and the memory that they take meanwhile.
namespace millrace {

// What the first rows of the data say about all rows.
struct RowSurvey {
  // Bytes of a row that waits in its block: its file as it lies in the archive with caption and metadata, or its
  // encoding if a cache may hold that.
  std::uint64_t bytes = 0;
  bool is_measured = false;    // measured or known; else a guess
  std::uint64_t count = 0;     // of all rows, about; 0 = unknown, or it is unknown how many the filters leave
  std::string complaint = {};  // if none of the first rows can be used
};
RowSurvey survey_rows(const ProducerConfig& config, const Manifest& manifest, const EncodingPlan& encoding);

struct ShufflePlan {
  std::uint32_t block = 1;  // rows of one stripe that are shuffled together
  RowSurvey rows;
  std::vector<std::uint64_t> stripes_of_rank;  // 0 for ranks that do not produce
  std::vector<std::string> hosts;              // of every rank
  std::vector<std::uint64_t> memory_of_rank;   // memory of its node, for all ranks there

  std::uint64_t bytes_of(std::uint64_t stripes) const { return stripes * block * rows.bytes; }
};

// The same on every rank, except for `rows`, which rank 0 alone knows. Collective.
ShufflePlan plan_shuffle(const Session& session, const ProducerConfig& config, const DataPlan& data,
                         const EncodingPlan& encoding, const Roles& roles, const Routing& routing);

// "blocks of 128 rows, about 1.2 GiB on each producer (64 stripes x 128 rows of 150 KiB)": for the start-up table.
std::string describe(const ShufflePlan& plan);

// A line for every node whose ranks together take more than a quarter of its memory for this.
std::vector<std::string> memory_warnings(const ShufflePlan& plan);

// A complaint about few archives that are much longer than what is shuffled together: many stripes read each in its
// order and in step, so that a sorted archive is trained on in that order.
std::optional<std::string> complaint_about_mixing(const ShufflePlan& plan, const DataPlan& data);

}  // namespace millrace
