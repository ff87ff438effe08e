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
  // Starts both the masters and the EMA from the model's present weights, which are rounded where it has another dtype
  // (`start_from` knows better). The model must outlive the optimizer.
  ShardedAdamW(ShardedModel& model, const OptimConfig& config, const EmaConfig& ema);

  // One update of weights, moments and EMA from the reduced gradients times `gradient_scale` (the clip factor), then
  // publishes the weights. Collective. A skipped step is one for which this is not called.
  void step(double lr, double gradient_scale = 1.0);

  // Updates so far; together with `state` all that a checkpoint needs.
  std::int64_t updates() const { return updates_; }
  std::int64_t ema_updates() const { return ema_updates_; }
  void set_updates(std::int64_t updates, std::int64_t ema_updates);

  // Starts the masters and the EMA from the float32 weights that rank 0's model had before it was cast. `originals`: by
  // name, contiguous memory on the host with nothing of the model's in it, which rank 0's overwrite on the other ranks;
  // lets go of them. Collective; Error(suspect_node) on all ranks when they do not arrive as they were.
  void start_from(std::map<std::string, torch::Tensor> originals);
  // Starts the EMA from other weights than the model's, those of rank 0 likewise. They are an average already, of
  // `updates` (rank 0's counts); where nobody knows it goes on as after `many_ema_updates`, behind any warm-up.
  static constexpr std::int64_t many_ema_updates = std::int64_t{1} << 40;
  void start_ema_from(std::map<std::string, torch::Tensor> weights, std::optional<std::int64_t> updates = {});
  // Puts the elements of a slice (flat_layout.h), float32, into host memory.
  using ReadSlice = std::function<void(const Slice& slice, std::span<float> elements)>;
  // Fills one kind of state. Of replicas each reads a part of their shard (equal_part), and they share it.
  // `publish_weights` makes new weights count. Collective; what `read` throws on a rank is thrown on all.
  void load(const std::string& kind, const ReadSlice& read);

  // "weights", "exp_avg", "exp_avg_sq" and, when enabled, "ema": this rank's shard of every bucket, float32, laid out
  // as slices_of_shard(model.layout(), model.shard()) says. Tensors may be written to; `publish_weights` then makes it
  // count.
  const std::map<std::string, std::vector<torch::Tensor>>& state() const { return state_; }
  // What is held of a slice of them, a view.
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

  // Trainers that hold something else than the others who should hold the same (`outvoted`): the parameters, except
  // where these are split, and a shard's replicas its masters, moments and EMA. Before a step the parameters are still
  // those that its gradients were computed with. Collective.
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
