#pragma once

namespace millrace {

// How a GPU was used while it was watched: sums over time, so those of several GPUs and times add up.
struct GpuUse {
  // What does not add up itself: a mean over time.
  struct Mean {
    double sum = 0, seconds = 0;

    double value() const { return sum / seconds; }  // not a number when nothing is known
    void add(double value, double for_seconds) { sum += value * for_seconds, seconds += for_seconds; }
    void add(const Mean& other, double factor) { sum += factor * other.sum, seconds += factor * other.seconds; }
  };
  Mean busy;        // 0..1: the share of the time in which some kernel ran
  Mean memory_gib;  // taken by all processes
  Mean watts;

  bool is_known() const { return busy.seconds > 0 || memory_gib.seconds > 0 || watts.seconds > 0; }
  void add(const GpuUse& other, double factor = 1) {
    busy.add(other.busy, factor);
    memory_gib.add(other.memory_gib, factor);
    watts.add(other.watts, factor);
  }
};

}  // namespace millrace
