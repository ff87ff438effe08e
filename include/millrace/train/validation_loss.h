#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// The loss on data.validation with one set of weights: over all samples, and for each tenth of the timestep range.
struct ValidationLoss {
  struct Bucket {
    std::int64_t first = 0, last = 0;  // timesteps
    double mean = 0;                   // NaN if the set has no samples there
    double unweighted = 0;             // mean with all weights 1, if ValidationLoss::unweighted is set

    std::string name() const { return std::to_string(first) + "-" + std::to_string(last); }
  };
  double mean = 0;
  std::vector<Bucket> by_timestep;
  std::optional<double> unweighted{};  // only if the objective weights samples: mean with all weights 1
};

// The losses of one validation.
struct ValidationLosses {
  ValidationLoss exported;            // with the weights that `export` gives
  std::optional<ValidationLoss> raw;  // with the trained weights, if `exported` is of their EMA
};

}  // namespace millrace
