#pragma once
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch/session.h"

// N pictures shared out to the ranks in units of a few neighbours, the n-th unit to rank n % ranks. A unit is computed
// in the same way by whichever rank, so results do not depend on the number of ranks.
namespace millrace {

struct PictureUnits {
  std::int64_t pictures = 0;
  std::int64_t size = 1;  // of a unit; the last one may be smaller

  std::int64_t count() const { return (pictures + size - 1) / size; }
  std::int64_t begin(std::int64_t unit) const { return unit * size; }
  std::int64_t end(std::int64_t unit) const { return std::min((unit + 1) * size, pictures); }
};

// Calls `work(begin, end)` for this rank's share of the `wanted` units in their order, and shows the progress of
// `doing` ("painting" ...). `work` must not communicate. What it throws on one rank is thrown on all; Error(requeue)
// when any rank was told to stop. Collective.
void for_each_unit(const Session& session, const PictureUnits& units, const std::vector<std::int64_t>& wanted,
                   const std::string& doing, const std::function<void(std::int64_t begin, std::int64_t end)>& work);
// The same for all units.
void for_each_unit(const Session& session, const PictureUnits& units, const std::string& doing,
                   const std::function<void(std::int64_t begin, std::int64_t end)>& work);

// The rows (end - begin, D) that the ranks have made for their units, as (N, D) on rank 0; undefined elsewhere.
// Collective.
torch::Tensor gather_rows(const Group& group, const PictureUnits& units, const std::vector<torch::Tensor>& mine);

}  // namespace millrace
