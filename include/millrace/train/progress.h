#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/core/append_file.h"
#include "millrace/image/image.h"
#include "millrace/train/metrics.h"

namespace millrace {

class PrometheusFile;
class TensorBoardWriter;

// Rank 0's account of the run: metrics.jsonl, ids.jsonl, TensorBoard, Prometheus, the progress line.
class Progress {
 public:
  struct Options {
    std::filesystem::path run_dir;
    std::int64_t resumed_step = 0;
    bool begins_elsewhere = false;  // from another run's checkpoint
    bool tensorboard = true, ids = false;
    double total_steps = 0;  // 0 = the duration is a time
    std::optional<std::filesystem::path> prometheus = std::nullopt;
    const RunLease* lease = nullptr;  // nothing is appended to files once another instance has the folder
  };
  explicit Progress(Options options);
  ~Progress();

  void ids(std::int64_t step, const std::vector<std::string>& ids);
  void metrics(const Metrics& metrics);
  // Writes RUN/KIND/step-00001000.png, and a smaller copy to TensorBoard. Returns the path. Error(io).
  std::filesystem::path picture(const std::string& kind, std::int64_t step, const Image& image);
  // Tells Prometheus that the run ended in order.
  void end();
  void flush();
  // Also waits until the lines are on disk: no later life writes those up to the checkpoint of this step again. Warns
  // when lines begin to be missing.
  void sync(std::int64_t step);

 private:
  double step_seconds(const Metrics& metrics);
  void write_tensorboard(const nlohmann::ordered_json& line);

  Options options_;
  std::optional<AppendFile> metrics_, ids_;
  std::unique_ptr<TensorBoardWriter> tensorboard_;
  std::unique_ptr<PrometheusFile> prometheus_;
  std::int64_t lines_ = 0;
  std::int64_t first_step_ = 0;  // of this process's lines
  double first_seconds_ = 0;
  double last_line_seconds_ = -1e9;
  bool lacks_lines_ = false;  // as of the last sync
};

}  // namespace millrace
