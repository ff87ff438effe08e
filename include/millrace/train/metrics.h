#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/nn/gpu_use.h"
#include "millrace/train/loss_parts.h"
#include "millrace/train/stages.h"
#include "millrace/train/validation_loss.h"

namespace millrace {

// Where the newest checkpoint stands, and how long the run has trained since.
struct SavedPoint {
  std::int64_t step = 0;
  double age_seconds = 0;
};

// What a run tells about itself at a step: means over the interval since the last time, over all ranks.
struct Metrics {
  std::int64_t step = 0, samples = 0, skipped = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  LossParts loss_parts{};
  double images_per_second = 0, step_ms = 0, data_wait_ms = 0;
  double encode_images_per_second = 0;           // of all producers, while they encode
  double queue_fill = 0;                         // 0..1
  double straggler = 1;                          // the slowest trainer's own time a sample / the median's; 1 = even
  int slowest_rank = 0;                          // the former, in the world
  std::optional<ValidationLosses> validation{};  // where they were measured at this step
  StageShares stages{};                          // of the producers
  // Rows of the data that were read since the run began, each counted once; of them the rejected ones, by their
  // reasons.
  std::uint64_t rows = 0;
  std::map<std::string, std::uint64_t> rejected{};
  double memory_gib = 0;
  std::optional<SavedPoint> checkpoint{};  // nothing with checkpoint.every=null
  GpuUse gpu{}, encode_gpu{};  // of the trainers' and the producers' GPUs, means; nothing is known without NVML
  std::optional<double> gpu_clock_mhz{}, gpu_temperature{};  // the lowest and the highest of the trainers' GPUs
  double elapsed_seconds = 0;

  // Of the trainers' time, what they wait for samples: 0..1.
  double wait_share() const { return step_ms > 0 ? data_wait_ms / step_ms : 0; }
};

// A field of metrics.jsonl that is a number, or an object of numbers. docs/metrics.md has the same list.
struct MetricField {
  std::string_view name;
  std::string_view group;  // of its TensorBoard tag: GROUP/NAME; an object's numbers are GROUP/KEY/NAME
  std::string_view help;   // one line
  bool only_grows = false;
};
std::span<const MetricField> metric_fields();

// A line of metrics.jsonl: the fields in their order, then the time. Numbers that are not finite are null.
nlohmann::ordered_json metrics_line(const Metrics& metrics);

// One line for people, without the step itself: "of 700 (31.4%) seen 3.52k loss 0.1211 ...". `total_steps`: 0 where the
// duration is a time. `step_seconds`: what one has taken so far with all that comes with it, validation and saves; 0 =
// step_ms is all that is known.
std::string describe(const Metrics& metrics, double total_steps, double step_seconds = 0);

}  // namespace millrace
