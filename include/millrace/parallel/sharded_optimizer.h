#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/parallel/optim_config.h"
#include "millrace/parallel/outvoted.h"
#include "millrace/parallel/sharded_model.h"

namespace millrace {

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019) with torch.optim.AdamW's arithmetic
// and an exponential moving average of the weights, on this rank's shard of every bucket. Everything it holds is
// float32; the master weights are the model's own parameters when these are float32.
class ShardedAdamW {
 public:
  // Starts both the masters and the EMA from the model's present weights, which have been rounded unless it is float32
  // (see start_from). The model must outlive the optimizer.
  ShardedAdamW(ShardedModel& model, const OptimConfig& config, const EmaConfig& ema);

  // One update of weights, moments and EMA from the reduced gradients times `gradient_scale` (the clip factor), then
  // publishes the weights. Collective. Not called for a skipped step.
  void step(double lr, double gradient_scale = 1.0);

  // Updates so far; together with `state` all that a checkpoint needs.
  std::int64_t updates() const { return updates_; }
  std::int64_t ema_updates() const { return ema_updates_; }
  void set_updates(std::int64_t updates, std::int64_t ema_updates);

  // Starts the masters and the EMA from the float32 weights that rank 0's model had before it was cast; does nothing
  // for a float32 model. `originals`: these weights by name, contiguous, on the host, sharing no memory with the model;
  // those of rank 0 replace the other ranks'. Collective; Error(suspect_node) on all ranks when they do not arrive as
  // they were.
  void start_from(std::map<std::string, torch::Tensor> originals);
  // Starts the EMA from rank 0's `weights` (given as for start_from), an average of `updates` updates. If unknown,
  // continues as after `many_ema_updates`, i.e. past any warm-up.
  static constexpr std::int64_t many_ema_updates = std::int64_t{1} << 40;
  void start_ema_from(std::map<std::string, torch::Tensor> weights, std::optional<std::int64_t> updates = {});
  // Puts the elements of a slice (flat_layout.h), float32, into host memory.
  using ReadSlice = std::function<void(const Slice& slice, std::span<float> elements)>;
  // Fills one kind of state. Each replica reads a part of its shard (equal_part), and they exchange the parts. Call
  // publish_weights() after new weights. Collective; what `read` throws on a rank is thrown on all.
  void load(const std::string& kind, const ReadSlice& read);

  // "weights", "exp_avg", "exp_avg_sq" and, when enabled, "ema": this rank's shard of every bucket, float32, laid out
  // as slices_of_shard(model.layout(), model.shard()) says. Tensors may be written to; call publish_weights()
  // afterwards.
  const std::map<std::string, std::vector<torch::Tensor>>& state() const { return state_; }
  // The elements of a slice of this rank's shard, a view.
  torch::Tensor shard_of(const std::string& kind, const Slice& slice) const;
  bool has_ema() const { return state_.contains("ema"); }
  // Casts the master weights into the parameter shards, which the next forward pass then uses on every rank.
  // Collective.
  void publish_weights();

  // Runs `body` with the EMA as the model's weights, then puts the weights back, bit for bit. `state` is not to be read
  // meanwhile. Collective. Error(bug) without EMA.
  template <class Body>
  void with_ema(Body&& body) {
    show_ema();
    body();
    hide_ema();
  }

  // Trainers whose state differs although it should be equal (outvoted.h): parameters on all trainers, unless they are
  // split; masters, moments and EMA on the replicas of a shard. Call before a step, when the parameters are still those
  // that its gradients were computed with. Collective.
  Outvoted differing_trainers() const;

 private:
  void share_part(const std::string& kind, std::span<const Slice> part, int from_replica);
  void take_from_rank_0(std::map<std::string, torch::Tensor>& tensors) const;
  void copy_shards(const std::string& kind, const std::map<std::string, torch::Tensor>& flat);
  void show_ema();
  void hide_ema();
  void swap_weights_and_ema();
  void update(double lr, double gradient_scale);
  void update_ema();
  void update_fused(double lr, double gradient_scale);

  bool has_separate_masters() const;

  ShardedModel& model_;
  OptimConfig config_;
  EmaConfig ema_;
  std::int64_t updates_ = 0, ema_updates_ = 0;
  std::map<std::string, std::vector<torch::Tensor>> state_;
  bool shows_ema_ = false;  // in place of the weights
};

}  // namespace millrace
