#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "plan/cluster.h"
#include "run/disk_space.h"
#include "train/run_memory.h"

// What a run will need, reach and cost on a cluster that is not there yet.
namespace millrace {

// Section `plan`.
struct PlanConfig {
  std::map<std::string, std::string> prices;  // GPU model -> money per GPU hour
  std::optional<std::string> rates;           // lines of `millrace bench --json`

  void describe(config::Section& section);
};

struct PlannedRole {
  enum class Kind { trainers, encoders, both } kind = Kind::trainers;
  int ranks = 0;
  const GpuModel* gpu = nullptr;
  double memory_gib = 0;                                                  // of a rank
  double images_per_second = 0;                                           // of all of them; 0: they read latents
  int batch = 0;                                                          // images that a rank has on its GPU at once
  int fitting_batch = 0;                                                  // the largest of use that would fit
  enum class Source { measured, published, peak } source = Source::peak;  // of the rate; measured: by the user

  bool encodes() const { return kind != Kind::trainers; }
};

const char* to_string(PlannedRole::Kind kind);

struct RunForecast {
  std::vector<PlannedRole> roles;
  double images_per_second = 0;  // of the run
  bool is_limited_by_encoders = false;
  int stripes = 0;            // data.stripes, or what archives enough would give
  int balanced_encoders = 0;  // as many keep all trainers busy; 0 where every rank does both, or nothing is encoded
  double encoders_per_trainer = 0;           // the same for one trainer; 0 as above
  const GpuModel* chosen_trainer = nullptr;  // the kind that trains where roles.* leave it open; null: they do not
  int micro_batch = 0;                       // batch.micro, or what `auto` stands for there
  int accumulation = 0;                      // micro-batches of a step
  double steps = 0, samples = 0, seconds = 0;
  std::optional<CheckpointSpace> checkpoints;  // nothing with checkpoint.every=null
  double gpu_hours = 0;
  std::optional<double> cost;              // nothing while a price is missing
  std::vector<std::string> without_price;  // GPU models
};

// Error(usage) with what would do when the cluster cannot run it: roles, batches, memory.
RunForecast forecast_run(const std::vector<NodeGroup>& cluster, const TrainConfig& config, const PlanConfig& plan,
                         const RunShapes& shapes);

}  // namespace millrace
