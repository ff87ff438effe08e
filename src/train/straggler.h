#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {

// Who takes longest for the same work, and how many times as long as the median (of an even number: the faster of the
// two in the middle). Values that are not finite are unknown and left out.
struct Slowest {
  std::size_t place = 0;
  double ratio = 1;  // 1 = nobody is slower than the median
};
Slowest find_slowest(std::span<const double> seconds);

// Watches who stays slow.
class StragglerWatch {
 public:
  static constexpr double slow_ratio = 1.33;
  static constexpr std::int64_t patience = 50;  // steps

  struct News {
    std::size_t place = 0;
    double ratio = 1;
    bool is_slow = true;     // else it was, and has recovered
    std::int64_t steps = 0;  // for which it has been slow
  };
  // `seconds`: what each of them took for the same work in the last `steps` steps. Returns those that have been slow at
  // every look for `patience` steps by now, each once until it has recovered. A single look may be slow because of a
  // single step.
  std::vector<News> look(std::span<const double> seconds, std::int64_t steps);

 private:
  struct Place {
    std::int64_t slow_steps = 0;
    int slow_looks = 0;
    bool told = false;
  };
  std::vector<Place> places_;
};

// Logs who has become slow or recovered; `works`: "trains", "encodes". `gpus`: those of the ranks, where they are
// known.
void warn_of_stragglers(const char* works, const std::vector<RankOnHost>& ranks,
                        const std::vector<StragglerWatch::News>& news, std::span<const GpuState> gpus = {});

}  // namespace millrace
