#pragma once
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "millrace/comm/collectives.h"
#include "millrace/comm/group.h"
#include "millrace/nn/parameter_source.h"
#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {

class GradientBuckets;
class ParameterBuckets;
struct ShardGroups;

// The names of all parameters, in order of registration.
std::vector<std::string> parameter_names(const torch::nn::Module& module);

// How tensors of this device are summed and gathered: through NCCL on a GPU, else through MPI.
MakeCollectives collectives_on(torch::Device device);

// A module whose parameters are views into flat buckets. Gradients leave it as they are made: autograd hands each to
// this object, which adds it to a float32 bucket, whatever the module's dtype, and sums a bucket over the trainers as
// soon as it and all behind it have theirs. Where the plan splits the parameters, they are gathered for the arithmetic
// that uses them, two buckets at a time (nn/parameter_source.h), and one more while a device computes with those. The
// module must outlive this object and keep its dtype and device; parameters that were split are lost with it.
//
// NOTE [Order of sums] Over MPI a gradient is, to the bit: the sum over the trainer's micro-batches in their order; of
// these the sum over the trainers of a replica, in their order; of these the sum over the replicas. ddp has one trainer
// in each replica, shard_grad_op one replica, so these two give the same bits. full_shard, which cannot keep whole
// gradients, adds the trainers' first and the micro-batches' after that: the same bits with one micro-batch only.
// Bucket sizes never matter. NCCL adds in an order of its own.
class ShardedModel final : private nn::ParameterSource {
 public:
  // Which weights the ranks begin with. `restored`: whatever they have, because a checkpoint replaces it.
  enum class Start { of_rank_0, restored };

  // Collective over `trainers`. With of_rank_0 its parameters are sent to all and compared; if any differ then,
  // Error(suspect_node) on all ranks. `order` names every parameter once, about in the order of their use: a bucket is
  // reduced when all behind it are, and gathered when one of its parameters is used. Error(bug) where it does not, or
  // where a parameter that is to be split is outside of an nn::Layer. `make_collectives`: by the module's device unless
  // given.
  ShardedModel(torch::nn::Module& module, const std::vector<std::string>& order, const ShardPlan& plan,
               const ParallelConfig& config, const Group& trainers, Start start = Start::of_rank_0,
               const MakeCollectives& make_collectives = {});
  ~ShardedModel() override;
  ShardedModel(const ShardedModel&) = delete;
  ShardedModel& operator=(const ShardedModel&) = delete;

  const FlatLayout& layout() const { return layout_; }
  const ShardPlan& plan() const;
  const Group& trainers() const { return trainers_; }
  int shard() const;
  int buckets() const { return static_cast<int>(layout_.buckets.size()); }

  // Forgets all gradients; exactly `backwards` backward passes follow, and leave parameter.grad() undefined. Where the
  // plan splits parameters each pass is collective, forward too: all trainers take equally many. Error(bug) for a
  // gradient too many or too late, and for a parameter that was moved.
  void begin_gradients(int backwards);
  // In place of a backward pass: a CUDA graph of one has run (nn/pass_graph.h). Not where the plan splits parameters.
  void repeat_gradients();
  // Whether each pass so far has given every parameter a gradient, as one that is to be repeated must.
  bool has_all_gradients() const;
  // After the last pass: gradient shards := sums over all trainers; 0 where no gradient came. `meanwhile` as in
  // Collectives::wait. Collective.
  void finish_gradients(const std::function<void()>& meanwhile = [] {});
  // Sum of squares of this rank's gradient shard; summed over all trainers every element counts once. A scalar in
  // double precision, which a device still computes.
  torch::Tensor gradient_square_sum() const;
  // L2 norm over all parameters, the same bits on every rank. Collective, after finish_gradients.
  double gradient_norm() const;

  // This rank's part of bucket b: (shard_elements). Parameters in the module's dtype, gradients in float32.
  torch::Tensor parameter_shard(int bucket) const;
  torch::Tensor gradient_shard(int bucket) const;

  // Sends a part of this rank's shard from one of its replicas to the others. Collective.
  void share_with_replicas(const torch::Tensor& shard, int from_replica) const;
  // Before parameter shards are written to: gathers that are under way end first, since they read them and may write
  // the own part of a bucket back to where it was read.
  void finish_gathers();
  // Parameter shards were written to: the next forward pass uses them on every rank. Starts to gather them, each layer
  // waits for its own; where parameters are split they are gathered at each use. Collective.
  void publish_parameters();
  // Hashes of all buckets of parameters, as the next pass will use them; only ranks on devices of one kind compare.
  // Collective where the plan splits parameters.
  std::string digest();

 private:
  struct TakeGradient;

  void adopt_bucket(int bucket, const torch::OrderedDict<std::string, torch::Tensor>& parameters);
  void share_weights_of_rank_0(const torch::Tensor& bucket) const;
  void check_parameters_in_place() const;
  void provide(const torch::Tensor& parameter) override;
  bool all_stay() const override { return !plan().splits_parameters(); }

  torch::nn::Module& module_;
  Group trainers_;
  FlatLayout layout_;
  std::unique_ptr<ShardGroups> groups_;
  std::unique_ptr<GradientBuckets> gradients_;
  std::unique_ptr<ParameterBuckets> parameters_;    // in the module's dtype
  std::vector<torch::Tensor> adopted_;              // the module's parameters, as layout_.parameters
  std::unordered_map<const void*, int> bucket_of_;  // a parameter, by its address
  bool layers_wait_ = false;                        // ask for parameters, which may be on their way
};

}  // namespace millrace
