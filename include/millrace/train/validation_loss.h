#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// The loss on data.validation with one set of weights: over all samples, and over those whose timesteps lie in each
// tenth of the range.
struct ValidationLoss {
  struct Bucket {
    std::int64_t first = 0, last = 0;  // timesteps
    double mean = 0;                   // not a number where the set has none of them
    double unweighted = 0;             // the same with all weights 1, where ValidationLoss::unweighted is known

    std::string name() const { return std::to_string(first) + "-" + std::to_string(last); }
  };
  double mean = 0;
  std::vector<Bucket> by_timestep;
  std::optional<double> unweighted{};  // where the objective weights samples: all of them alike
};

// What one validation found.
struct ValidationLosses {
  ValidationLoss exported;            // with the weights that `export` gives
  std::optional<ValidationLoss> raw;  // with the trained ones, where the others are their EMA
};

}  // namespace millrace
