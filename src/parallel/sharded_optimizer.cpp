#include "millrace/parallel/sharded_optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <torch/utils.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/fused.h"
#include "millrace/parallel/storage_order.h"
#include "tensor_digest.h"

namespace millrace {

ShardedAdamW::ShardedAdamW(ShardedModel& model, const OptimConfig& config, const EmaConfig& ema)
    : model_(model), config_(config), ema_(ema) {
  for (int b = 0; b < model.buckets(); ++b) {
    const auto weights = model.parameter_shard(b).to(torch::kFloat32);  // the same memory where it is float32 already
    state_["weights"].push_back(weights);
    state_["exp_avg"].push_back(torch::zeros_like(weights));
    state_["exp_avg_sq"].push_back(torch::zeros_like(weights));
    if (ema.enabled) state_["ema"].push_back(weights.clone());
  }
}

void ShardedAdamW::step(double lr, double gradient_scale) {
  const torch::NoGradGuard no_grad;
  model_.finish_gathers();
  ++updates_;
  if (has_ema()) ++ema_updates_;
  if (nn::fused_kernels_on(state_.at("weights")[0].device())) {
    update_fused(lr, gradient_scale);
    model_.publish_parameters();
  } else {
    update(lr, gradient_scale);
    update_ema();
    publish_weights();
  }
}

// Weights, moments, EMA and the model's own copy in one pass.
void ShardedAdamW::update_fused(double lr, double gradient_scale) {
  const kernels::OpScope scope("millrace::adamw_update");
  const kernels::AdamwSettings settings{.lr = lr,
                                        .beta1 = config_.betas[0],
                                        .beta2 = config_.betas[1],
                                        .eps = config_.eps,
                                        .weight_decay = config_.weight_decay,
                                        .ema_decay = has_ema() ? ema_decay(ema_, ema_updates_) : 0,
                                        .gradient_factor = gradient_scale,
                                        .step = updates_};
  for (int b = 0; b < model_.buckets(); ++b)
    kernels::adamw_step({.gradient = model_.gradient_shard(b),
                         .weights = state_.at("weights")[b],
                         .exp_avg = state_.at("exp_avg")[b],
                         .exp_avg_sq = state_.at("exp_avg_sq")[b],
                         .ema = has_ema() ? state_.at("ema")[b] : torch::Tensor(),
                         .published = has_separate_masters() ? model_.parameter_shard(b) : torch::Tensor()},
                        settings);
}

void ShardedAdamW::update(double lr, double gradient_scale) {
  const kernels::OpScope scope("millrace::adamw_update");
  std::vector<torch::Tensor> gradients;
  for (int b = 0; b < model_.buckets(); ++b) gradients.push_back(model_.gradient_shard(b));
  const auto scalar = [&](double value) { return torch::full({}, value, gradients[0].options()); };
  const std::vector<torch::Tensor> count(gradients.size(), scalar(static_cast<double>(updates_)));
  // The kernel divides gradients by its scale, in the same pass as everything else; one that clips to next to nothing
  // has no finite inverse.
  const double divisor = std::min(1 / gradient_scale, double{std::numeric_limits<float>::max()});
  const auto scale = divisor == 1.0 ? std::optional<torch::Tensor>() : scalar(divisor);
  at::_fused_adamw_(state_.at("weights"), gradients, state_.at("exp_avg"), state_.at("exp_avg_sq"),
                    /*max_exp_avg_sqs=*/{}, count, lr, config_.betas[0], config_.betas[1], config_.weight_decay,
                    config_.eps,
                    /*amsgrad=*/false, /*maximize=*/false, scale);
}

void ShardedAdamW::update_ema() {
  if (!has_ema()) return;
  const kernels::OpScope scope("millrace::ema_update");
  const double decay = ema_decay(ema_, ema_updates_);
  for (int b = 0; b < model_.buckets(); ++b) state_.at("ema")[b].lerp_(state_.at("weights")[b], 1 - decay);
}

void ShardedAdamW::set_updates(std::int64_t updates, std::int64_t ema_updates) {
  updates_ = updates;
  ema_updates_ = ema_updates;
}

void ShardedAdamW::start_from(std::map<std::string, torch::Tensor> originals) {
  if (!has_separate_masters()) return;
  take_from_rank_0(originals);
  copy_shards("weights", originals);
  if (has_ema()) copy_shards("ema", originals);
}

void ShardedAdamW::start_ema_from(std::map<std::string, torch::Tensor> weights, std::optional<std::int64_t> updates) {
  ensure(has_ema(), "an EMA that is to start from weights of its own");
  ema_updates_ = updates.value_or(many_ema_updates);
  model_.trainers().broadcast(std::as_writable_bytes(std::span(&ema_updates_, 1)));
  take_from_rank_0(weights);
  copy_shards("ema", weights);
}

// Every rank has read a file of its own, and nothing says that these are equal. Puts the elements into storage order.
void ShardedAdamW::take_from_rank_0(std::map<std::string, torch::Tensor>& tensors) const {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> arrived;
  for (const auto& spec : model_.layout().parameters) {
    auto& tensor = tensors.at(spec.name);
    tensor = in_storage_order(tensor, spec.channels_last);
    model_.trainers().broadcast({static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    arrived.push_back(tensor);
  }
  check_arrival(model_.trainers(), arrived);
}

void ShardedAdamW::copy_shards(const std::string& kind, const std::map<std::string, torch::Tensor>& flat) {
  const torch::NoGradGuard no_grad;
  for (const auto& slice : slices_of_shard(model_.layout(), model_.shard()))
    shard_of(kind, slice).copy_(flat.at(slice.name).slice(0, slice.begin, slice.end));
}

torch::Tensor ShardedAdamW::shard_of(const std::string& kind, const Slice& slice) const {
  return state_.at(kind)[slice.bucket].narrow(0, slice.shard_offset, slice.end - slice.begin);
}

void ShardedAdamW::load(const std::string& kind, const ReadSlice& read) {
  const torch::NoGradGuard no_grad;
  model_.finish_gathers();
  const int replicas = model_.plan().replicas, replica = model_.plan().replica_of(model_.trainers().rank());
  const auto slices = slices_of_shard(model_.layout(), model_.shard());
  on_all(model_.trainers(), [&] {
    for (const auto& slice : equal_part(slices, replica, replicas)) {
      const auto target = shard_of(kind, slice);
      const auto host = target.is_cpu() ? target : torch::empty_like(target, torch::kCPU);
      read(slice, {host.data_ptr<float>(), static_cast<std::size_t>(host.numel())});
      if (!target.is_cpu()) target.copy_(host);
    }
  });
  for (int from = 0; from < replicas; ++from) share_part(kind, equal_part(slices, from, replicas), from);
}

// A transfer for each bucket: the slices there and what lies between them.
void ShardedAdamW::share_part(const std::string& kind, std::span<const Slice> part, int from_replica) {
  while (!part.empty()) {
    const auto& first = part.front();
    const auto next = std::ranges::find_if(part, [&](const Slice& slice) { return slice.bucket != first.bucket; });
    const auto& last = *std::prev(next);
    const auto elements = last.shard_offset + last.end - last.begin - first.shard_offset;
    model_.share_with_replicas(state_.at(kind)[first.bucket].narrow(0, first.shard_offset, elements), from_replica);
    part = {next, part.end()};
  }
}

bool ShardedAdamW::has_separate_masters() const {
  return !state_.at("weights")[0].is_alias_of(model_.parameter_shard(0));
}

void ShardedAdamW::publish_weights() {
  const torch::NoGradGuard no_grad;
  model_.finish_gathers();
  if (has_separate_masters()) {
    for (int b = 0; b < model_.buckets(); ++b) model_.parameter_shard(b).copy_(state_.at("weights")[b]);
  }
  model_.publish_parameters();
}

void ShardedAdamW::show_ema() {
  ensure(has_ema(), "there is no EMA to show");
  ensure(!shows_ema_, "the EMA stands in for the weights already");
  shows_ema_ = true;
  const torch::NoGradGuard no_grad;
  model_.finish_gathers();
  if (has_separate_masters()) {
    for (int b = 0; b < model_.buckets(); ++b) model_.parameter_shard(b).copy_(state_.at("ema")[b]);
  } else {
    swap_weights_and_ema();
  }
  model_.publish_parameters();
}

void ShardedAdamW::hide_ema() {
  model_.finish_gathers();
  if (!has_separate_masters()) swap_weights_and_ema();
  publish_weights();
  shows_ema_ = false;
}

// In place, so that a second copy of a bucket is all it takes.
void ShardedAdamW::swap_weights_and_ema() {
  const torch::NoGradGuard no_grad;
  for (int b = 0; b < model_.buckets(); ++b) {
    const auto &weights = state_.at("weights")[b], &ema = state_.at("ema")[b];
    const auto copy = weights.clone();
    weights.copy_(ema);
    ema.copy_(copy);
  }
}

Outvoted ShardedAdamW::differing_trainers() const {
  const auto& plan = model_.plan();
  Outvoted differing;
  const auto compare = [&](const std::string& digest, int groups) {
    differing = merge(differing, outvoted(model_.trainers().all_gather_strings(digest), groups));
  };
  if (!plan.splits_parameters()) compare(model_.digest(), 1);
  if (plan.replicas > 1) {
    std::string digests;
    for (const auto& [kind, shards] : state_) digests += digest_of(shards);
    compare(digests, plan.shards);
  }
  return differing;
}

}  // namespace millrace
