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

// Step of the newest checkpoint, and seconds of training since then.
struct SavedPoint {
  std::int64_t step = 0;
  double age_seconds = 0;
};

// What a run reports at a step: means over the interval since its last report, and over all ranks.
struct Metrics {
  std::int64_t step = 0, samples = 0, skipped = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  LossParts loss_parts{};
  double images_per_second = 0, step_ms = 0, data_wait_ms = 0;
  double encode_images_per_second = 0;           // of all producers, while they encode
  double queue_fill = 0;                         // 0..1
  double straggler = 1;                          // the slowest trainer's own time per sample / the median's; 1 = even
  int slowest_rank = 0;                          // world rank of that trainer
  std::optional<ValidationLosses> validation{};  // if measured at this step
  StageShares stages{};                          // of the producers
  // Rows read since the run began, each counted once; those of them that were rejected, by reason.
  std::uint64_t rows = 0;
  std::map<std::string, std::uint64_t> rejected{};
  double memory_gib = 0;
  std::optional<SavedPoint> checkpoint{};  // none with checkpoint.every=null
  GpuUse gpu{}, encode_gpu{};              // means over the trainers' and over the producers' GPUs; empty without NVML
  std::optional<double> gpu_clock_mhz{}, gpu_temperature{};  // lowest and highest of the trainers' GPUs
  double elapsed_seconds = 0;

  // Fraction of the trainers' time spent waiting for samples, 0..1.
  double wait_share() const { return step_ms > 0 ? data_wait_ms / step_ms : 0; }
};

// A field of metrics.jsonl that is a number, or an object of numbers. docs/metrics.md has the same list.
struct MetricField {
  std::string_view name;
  std::string_view group;  // of the TensorBoard tag, GROUP/NAME; the numbers of an object are GROUP/KEY/NAME
  std::string_view help;   // one line
  bool only_grows = false;
};
std::span<const MetricField> metric_fields();

// A line of metrics.jsonl: the fields in their order, then the time. Numbers that are not finite are null.
nlohmann::ordered_json metrics_line(const Metrics& metrics);

// One line for people, without the step itself: "of 700 (31.4%) seen 3.52k loss 0.1211 ...". `total_steps`: 0 if the
// duration is a time. `step_seconds`: mean time of a step so far with validation and saves, for the time that is left;
// 0 = unknown, step_ms is used instead.
std::string describe(const Metrics& metrics, double total_steps, double step_seconds = 0);

}  // namespace millrace
