#pragma once
#include <algorithm>

namespace millrace {

// The longest of repeated events, in seconds. Each further event makes earlier ones count for less: a disk that was
// slow for an hour must not cost minutes at the end of every job.
class Longest {
 public:
  explicit Longest(double kept) : kept_(kept) {}

  void add(double seconds) {
    fade();
    raise(seconds);
  }
  void fade() { seconds_ *= kept_; }
  void raise(double seconds) { seconds_ = std::max(seconds, seconds_); }
  double seconds() const { return seconds_; }  // 0 = nothing yet

 private:
  const double kept_;
  double seconds_ = 0;
};

}  // namespace millrace
