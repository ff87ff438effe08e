#pragma once
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "millrace/comm/collectives.h"
#include "millrace/comm/group.h"
#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

// Names of parameters that run together, in the module's own naming (`named_parameters`).
struct ParameterBlock {
  std::string name;
  std::vector<std::string> parameters;
};

// The blocks of a module in order of registration: one per `depth` leading components of the parameter names
// ("down_blocks.0", "conv_in", ...).
std::vector<ParameterBlock> blocks_of(const torch::nn::Module& module, int depth = 2);
// The same from lists of names, as models with an execution order of their own give them.
std::vector<ParameterBlock> blocks_of(std::vector<std::vector<std::string>> names);

// The elements of a parameter as a bucket holds them: flat, those of a `channels_last` weight in the order O, H, W, I.
torch::Tensor in_storage_order(const torch::Tensor& logical, bool channels_last);
// The reverse, a view.
torch::Tensor from_storage_order(const torch::Tensor& flat, const std::vector<std::int64_t>& shape, bool channels_last);

// The weights a module has now, by name. They stay what they are when the module is cast or moved.
std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module);

// A module whose parameters are views into flat buckets, and whose gradients are views into flat gradient buckets that
// autograd adds to in place. The module must outlive this object and keep its dtype and device.
class ShardedModel {
 public:
  // Which weights the ranks begin with. `restored`: whatever they have, because a checkpoint replaces it.
  enum class Start { of_rank_0, restored };

  // Collective over `trainers`. Parameters of rank 0 are sent to all others, and a hash of the result is compared:
  // weights that differ between ranks end the run. `blocks` name every trainable parameter exactly once, in execution
  // order.
  ShardedModel(torch::nn::Module& module, const std::vector<ParameterBlock>& blocks, const ShardPlan& plan,
               const ParallelConfig& config, const Group& trainers, Start start = Start::of_rank_0);

  const FlatLayout& layout() const { return layout_; }
  const ShardPlan& plan() const { return plan_; }
  const Group& trainers() const { return trainers_; }
  int shard() const { return plan_.shard_of(trainers_.rank()); }
  int buckets() const { return static_cast<int>(layout_.buckets.size()); }

  void zero_gradients();
  // Sums the gradients of all trainers into the shards, times `factor` (1 / number of parts for a mean). Afterwards the
  // gradient shards are valid, the full gradients are not.
  void reduce_gradients(double factor);
  // Sum of squares of this rank's gradient shard; summed over all trainers every element counts once. Double precision.
  double gradient_square_sum() const;
  // L2 norm over all parameters, the same bits on every rank. Collective, after reduce_gradients.
  double gradient_norm() const;

  // This rank's part of bucket b: (shard_elements). Parameters in the module's dtype, a view; gradients in float32.
  torch::Tensor parameter_shard(int bucket) const;
  torch::Tensor gradient_shard(int bucket) const { return gradient_shards_[bucket]; }

  // Sends a tensor like this rank's shard from one of its replicas to the others. Collective.
  void share_with_replicas(const torch::Tensor& shard, int from_replica) const;
  // Makes all parameters complete from the shards of all trainers. Collective.
  void gather_parameters();
  // Throws Error(timeout) on every rank when the parameters differ between trainers. Collective.
  void compare_parameters() const;

 private:
  struct Adopted {
    torch::Tensor parameter, gradient;  // of the module, and its view into the bucket
  };

  void allocate(torch::TensorOptions options);
  void adopt(const torch::OrderedDict<std::string, torch::Tensor>& parameters);
  void share_weights_of_rank_0();
  void check_gradients_in_place() const;
  torch::Tensor shard_of_bucket(const torch::Tensor& bucket) const;

  ShardPlan plan_;
  Group trainers_;
  std::unique_ptr<Collectives> shard_collectives_, replica_collectives_;
  FlatLayout layout_;
  std::vector<torch::Tensor> parameters_, gradients_;  // per bucket, in the module's dtype
  std::vector<torch::Tensor> gradient_shards_;  // per bucket, float32; views of gradients_ where these are float32
  std::vector<Adopted> adopted_;
};

}  // namespace millrace
