#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/core/units.h"

// The sections of the configuration that belong to the training loop.
namespace millrace {

// Section `batch` once `batch.micro=auto` has been resolved.
struct BatchConfig {
  int global = 2048;
  int micro = 32;

  void describe(config::Section& section);
};

struct CheckpointConfig {
  std::optional<config::Auto<Duration>> every = config::Auto<Duration>{Duration::steps(2000)};
  int keep = 3;
  std::optional<Duration> keep_every;
  std::string resume = "auto";  // auto | never | PATH
  bool allow_changes = false;

  void describe(config::Section& section);
};

struct PicturesConfig {
  Duration every = Duration::steps(1000);
  std::optional<std::string> prompts;  // file with one prompt a line
  int count = 8;
  int steps = 25;
  double guidance_scale = 7.5;

  void describe(config::Section& section);
};

struct ValidationConfig {
  Duration every = Duration::steps(1000);
  int batches = 8;

  void describe(config::Section& section);
};

struct LogConfig {
  Duration every = Duration::steps(10);
  bool tensorboard = true;
  std::optional<std::string> prometheus;
  bool ids = false;

  void describe(config::Section& section);
};

struct RecordConfig {
  std::vector<std::int64_t> steps;

  void describe(config::Section& section);
};

struct GuardConfig {
  enum class NonFinite { skip, stop };
  enum class OnRepeat { stop, rollback };
  NonFinite non_finite = NonFinite::skip;
  std::optional<double> spike_sigma = 6;
  int max_skips = 10;
  OnRepeat on_repeat = OnRepeat::stop;
  std::optional<Duration> digest_every = Duration::steps(1000);
  config::Auto<Duration> hang_timeout;

  void describe(config::Section& section);
  void check(config::Report& report) const;
  double hang_seconds() const;  // of hang_timeout
};

// The settings of the loop itself.
struct LoopConfig {
  std::string run_dir;
  Duration duration = Duration::steps(550000);
  BatchConfig batch;
  CheckpointConfig checkpoint;
  LogConfig log;
  RecordConfig record;
  GuardConfig guard;
  std::string losses_of;  // digest of the settings that determine how large losses usually are
};

}  // namespace millrace
