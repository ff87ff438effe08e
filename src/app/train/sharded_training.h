#pragma once
#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/reader.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

// A network in training: on its device, split over the trainers, with its optimizer and EMA.
class ShardedTraining {
 public:
  struct Options {
    ShardPlan shards;
    ParallelConfig parallel;
    OptimConfig optim;
    EmaConfig ema;
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kFloat32;
    std::optional<bool> channels_last;  // as in nn::place
  };

  // `network`: in float32 on the host; it must outlive this object. The weights are those of `checkpoint` or, without
  // one, those of rank 0's network. `order`: of its parameters, as in ShardedModel. Collective; Error(io), on all
  // trainers, when the checkpoint does not fit.
  ShardedTraining(torch::nn::Module& network, const std::vector<std::string>& order, const Options& options,
                  const Group& trainers, const std::optional<CheckpointReader>& checkpoint);

 private:
  using Weights = std::map<std::string, torch::Tensor>;
  ShardedTraining(torch::nn::Module& network, const std::vector<std::string>& order, const Options& options,
                  const Group& trainers, const std::optional<CheckpointReader>& checkpoint, Weights originals);

 public:
  ShardedModel model;
  ShardedAdamW optimizer;
};

}  // namespace millrace
