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

// Makes the collectives for tensors of this device: NCCL on a GPU, else MPI.
MakeCollectives collectives_on(torch::Device device);

// A module whose parameters are views into flat buckets. Autograd hands each gradient to this object as soon as it is
// made; it is added to a float32 bucket, whatever the module's dtype, and a bucket is summed over the trainers as soon
// as it and all later ones have their gradients. If the plan splits the parameters, they are gathered for the layers
// that use them, two buckets at a time (nn/parameter_source.h), and on a device one more ahead. The module must outlive
// this object and keep its dtype and device; parameters that were split are lost with it.
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

  // With of_rank_0 the parameters of rank 0 are sent to all ranks and compared: Error(suspect_node) on all if any
  // differ on arrival. `order` names every parameter once, roughly in the order of use: a bucket is reduced after all
  // later ones, and gathered when one of its parameters is used. Error(bug) if it does not, or if a parameter that is
  // to be split lies outside of an nn::Layer. `make_collectives`: by the module's device unless given. Collective over
  // `trainers`.
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

  // Forgets all gradients; exactly `backwards` backward passes follow, and leave parameter.grad() undefined. If the
  // plan splits parameters, forward and backward passes are collective, so all trainers make equally many. Error(bug)
  // for a gradient too many or too late, and for a parameter that was moved.
  void begin_gradients(int backwards);
  // Call in place of a backward pass, after a CUDA graph of one has run (nn/pass_graph.h). Not if the plan splits
  // parameters.
  void repeat_gradients();
  // Whether each pass so far has given every parameter a gradient, as a pass must that is recorded as a CUDA graph.
  bool has_all_gradients() const;
  // Call after the last pass: gradient shards := sums over all trainers; 0 where no gradient came. `meanwhile` as in
  // Collectives::wait. Collective.
  void finish_gradients(const std::function<void()>& meanwhile = [] {});
  // Sum of squares of this rank's gradient shard, 0 outside of the first replica: summed over all trainers, every
  // element counts once. A float64 scalar that a device may still be computing.
  torch::Tensor gradient_square_sum() const;
  // L2 norm over all parameters, the same bits on every rank. Collective, after finish_gradients.
  double gradient_norm() const;

  // This rank's part of bucket b: (shard_elements). Parameters in the module's dtype, gradients in float32.
  torch::Tensor parameter_shard(int bucket) const;
  torch::Tensor gradient_shard(int bucket) const;

  // Sends a part of this rank's shard from one of its replicas to the others. Collective.
  void share_with_replicas(const torch::Tensor& shard, int from_replica) const;
  // Call before writing to parameter shards: completes the gathers under way, which read them and may write the own
  // part of a bucket back to where it was read.
  void finish_gathers();
  // Call after writing to parameter shards: the next forward pass uses them on every rank. Starts to gather them, and
  // each layer waits for its own; if parameters are split they are gathered at each use. Collective.
  void publish_parameters();
  // Hashes of all buckets of parameters, as the next pass will use them; comparable only between devices of one kind.
  // Collective if the plan splits parameters.
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
  bool layers_wait_ = false;                        // the layers ask for parameters, which may be in transit
};

}  // namespace millrace
