#include "millrace/loader/enlarged_watch.h"

#include <algorithm>

#include "millrace/core/log.h"

namespace millrace {

void EnlargedWatch::count(const Image& image, int resolution) {
  constexpr std::uint64_t patience = 1000, enlarged_one = std::uint64_t{1} << 32;
  const auto images = [](std::uint64_t counts) { return counts % enlarged_one; };
  if (images(counts_.load(std::memory_order_relaxed)) >= patience) return;
  const bool is_enlarged = std::min(image.width, image.height) < resolution;
  const std::uint64_t step = is_enlarged ? enlarged_one + 1 : 1, counts = counts_.fetch_add(step) + step;
  const std::uint64_t enlarged = counts / enlarged_one;
  if (images(counts) != patience || 2 * enlarged <= patience) return;
  log::warning(
      "{} % of the first {} images are smaller than transform.resolution = {} and are enlarged; in a new run "
      "data.images.min_side = {} leaves such images out",
      100 * enlarged / patience, patience, resolution, resolution);
}

EnlargedWatch& EnlargedWatch::of_training() {
  static EnlargedWatch watch;
  return watch;
}

}  // namespace millrace
