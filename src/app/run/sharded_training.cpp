#include "run/sharded_training.h"

#include "millrace/checkpoint/restore.h"
#include "millrace/nn/layers.h"

namespace millrace {

static torch::nn::Module& moved(torch::nn::Module& network, const ShardedTraining::Options& options) {
  nn::place(network, options.device, options.dtype, options.channels_last);
  return network;
}

// The float32 weights are kept for the optimizer while the network takes the dtype that it computes in.
ShardedTraining::ShardedTraining(torch::nn::Module& network, const std::vector<std::string>& order,
                                 const Options& options, const Group& trainers,
                                 const std::optional<CheckpointReader>& checkpoint)
    : ShardedTraining(network, order, options, trainers, checkpoint, checkpoint ? Weights() : weights_of(network)) {}

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
