#include "train/sharded_training.h"

#include "millrace/checkpoint/restore.h"
#include "millrace/nn/layers.h"
#include "millrace/nn/weights.h"

namespace millrace {

static torch::nn::Module& moved(torch::nn::Module& network, const ShardedTraining::Options& options) {
  nn::place(network, options.device, options.dtype, options.channels_last);
  return network;
}

// What the optimizer begins with, where the network is about to lose it: its float32 weights, when it will compute in
// another dtype. Kept for nothing, they would be a second copy of the model while everything else is made.
static std::map<std::string, torch::Tensor> originals_of(const torch::nn::Module& network,
                                                         const ShardedTraining::Options& options, bool is_restored) {
  if (is_restored || options.dtype == torch::kFloat32) return {};
  return weights_of(network);
}

ShardedTraining::ShardedTraining(torch::nn::Module& network, const std::vector<std::string>& order,
                                 const Options& options, const Group& trainers,
                                 const std::optional<CheckpointReader>& checkpoint)
    : ShardedTraining(network, order, options, trainers, checkpoint,
                      originals_of(network, options, checkpoint.has_value())) {}

ShardedTraining::ShardedTraining(torch::nn::Module& network, const std::vector<std::string>& order,
                                 const Options& options, const Group& trainers,
                                 const std::optional<CheckpointReader>& checkpoint, Weights originals)
    : model(moved(network, options), order, options.shards, options.parallel, trainers,
            checkpoint ? ShardedModel::Start::restored : ShardedModel::Start::of_rank_0),
      optimizer(model, options.optim, options.ema) {
  if (checkpoint) {
    restore(*checkpoint, optimizer);
  } else {
    optimizer.start_from(std::move(originals));
  }
}

}  // namespace millrace
