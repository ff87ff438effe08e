#include "weight_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/error.h"

namespace millrace {

void compare_weights(const TrainerContext& context, std::int64_t step) {
  const auto differing = context.optimizer.differing_trainers();
  if (differing.trainers.empty()) return;
  std::vector<std::string> names;
  for (const int trainer : differing.trainers) {
    const auto& [rank, host] = context.trainer_ranks.at(static_cast<std::size_t>(trainer));
    names.push_back(fmt::format("rank {} on {}", rank, host));
  }
  const Error error(Exit::suspect_node,
                    fmt::format("step {}: {} {}", step,
                                differing.is_by_majority ? "weights differ from those of the other trainers:"
                                                         : "the trainers' weights differ, and no majority agrees:",
                                fmt::join(names, ", ")),
                    "memory or network of a node is damaged");
  if (std::ranges::count(differing.trainers, context.trainers.rank()) > 0)
    fault::write(error);  // names the suspects' nodes
  throw AgreedError(error, context.trainers);
}

}  // namespace millrace
