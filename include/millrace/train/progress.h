#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/core/append_file.h"
#include "millrace/core/units.h"
#include "millrace/train/stages.h"
#include "millrace/train/tensorboard.h"
#include "millrace/train/validation_loss.h"

namespace millrace {

// One line of metrics.jsonl: means over the interval since the last one, over all ranks.
struct Metrics {
  std::int64_t step = 0, samples = 0, skipped = 0;
  double loss = 0, grad_norm = 0, lr = 0;
  double images_per_second = 0, step_ms = 0, data_wait_ms = 0;
  double encode_images_per_second = 0;           // of all producers, while they encode
  double queue_fill = 0;                         // 0..1
  double straggler = 1;                          // the slowest trainer's own time a step / the median's; 1 = even
  int slowest_rank = 0;                          // the former, in the world
  std::optional<ValidationLosses> validation{};  // where they were measured at this step
  StageShares stages{};                          // of the producers
  double memory_gib = 0;
  double elapsed_seconds = 0;
};

// Drops the lines of a JSON-lines file beyond `last_step`, which a resumed run will write again, and one that a crash
// has cut short. Nothing where there is no file.
void drop_lines_beyond(const std::filesystem::path& path, std::int64_t last_step);

// Rank 0's account of the run: metrics.jsonl, ids.jsonl, TensorBoard, the progress line.
class Progress {
 public:
  struct Options {
    std::filesystem::path run_dir;
    std::int64_t resumed_step = 0;
    bool tensorboard = true, ids = false;
    double total_steps = 0;  // 0 = the duration is a time
  };
  explicit Progress(Options options);
  ~Progress();

  void ids(std::int64_t step, const std::vector<std::string>& ids);
  void metrics(const Metrics& metrics);
  void flush();

 private:
  void write_validation(std::int64_t step, const ValidationLosses& losses);

  Options options_;
  std::optional<AppendFile> metrics_, ids_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::int64_t lines_ = 0;
  double last_line_seconds_ = -1e9;
};

// One line without the step itself: "of 700 (31.4%) seen 3.52k loss 0.1211 ...".
std::string describe(const Metrics& metrics, double total_steps);

}  // namespace millrace
