#include "train/complaints.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/core/log.h"

namespace millrace {

void warn(const std::optional<std::string>& complaint) {
  if (complaint) log::warning("{}", *complaint);
}

std::optional<std::string> complaint_about_warmup(const OptimConfig& optim, const Duration& duration,
                                                  std::int64_t global_batch, const RunPoint& at) {
  constexpr double tolerable = 0.25;
  const double steps = std::ceil(to_steps(duration, global_batch).value_or(0));
  const double warmup = to_steps(optim.warmup, global_batch).value_or(0);
  if (steps == 0 || warmup <= tolerable * steps || reached(optim.warmup, at)) return std::nullopt;
  if (warmup <= steps)
    return fmt::format("optim.warmup is {}, {:.0f}% of the run", to_string(optim.warmup), 100 * warmup / steps);
  return fmt::format("optim.warmup is {}, longer than the run: at its end the learning rate is {:.3g}% of optim.lr",
                     to_string(optim.warmup), 100 * steps / warmup);
}

std::optional<std::string> complaint_about_ema(const TrainConfig& config) {
  constexpr double tolerable = 0.01;
  const auto& unet = config.model.unet;
  const bool starts_random = unet.init != ModelConfig::Init::pretrained && !unet.ema_start;
  const auto steps = to_steps(config.duration, config.batch.global);
  if (!config.ema.enabled || config.ema.warmup || !starts_random || !steps) return std::nullopt;
  const double left = std::pow(config.ema.decay, std::ceil(*steps));
  if (left <= tolerable) return std::nullopt;
  return fmt::format("ema.warmup=false: at the end of the run {:.0f}% of the EMA are still the random initial weights",
                     100 * left);
}

std::optional<std::string> complaint_about_captions(const EncodingPlan& encoding, const ObjectiveConfig& objective) {
  constexpr double usual = 0.1;  // in MosaicML's precompute_latents.py
  if (!encoding.reads_tables() || objective.caption_dropout == 0) return std::nullopt;
  return fmt::format(
      "if captions were dropped when the Parquet latents were made, objective.caption_dropout={} drops more of them: "
      "where a tenth was, {:.0f}% are empty; 0 drops none",
      objective.caption_dropout, 100 * (1 - (1 - usual) * (1 - objective.caption_dropout)));
}

// Near the number of stripes, one trainer less can double the time of a step.
std::optional<std::string> complaint_about_shares(const Routing& routing) {
  constexpr double tolerable = 1.25;
  const auto stripes = static_cast<int>(routing.trainer_of_stripe.size());
  const double longer = static_cast<double>(routing.largest_share(stripes)) * routing.trainers() / stripes;
  if (longer <= tolerable) return std::nullopt;
  return fmt::format("a step takes {:.0f}% longer than it would if the {} trainers had equal shares of the {} stripes",
                     100 * (longer - 1), routing.trainers(), stripes);
}

// A step takes equally many samples of each stripe.
std::optional<std::string> complaint_about_producers(const Roles& roles, int stripes, int global_batch) {
  constexpr double tolerable = 1.1;
  const auto producers = static_cast<int>(roles.producers.size());
  if (roles.all_in_one || producers == 0) return std::nullopt;
  const int most = (stripes + producers - 1) / producers;
  if (most * producers <= tolerable * stripes) return std::nullopt;
  auto text = fmt::format("{} of the {} producers own {} stripes each and set the pace: {} producers would do as much",
                          stripes - (most - 1) * producers, producers, most, (stripes + most - 1) / most);
  if (stripes < global_batch)
    text += "; in a new run a larger data.stripes, a divisor of batch.global, may deal them out more evenly";
  return text;
}

std::optional<std::string> complaint_about_cpu_producers(const Roles& roles,
                                                         const std::vector<std::string>& gpu_of_rank) {
  if (roles.all_in_one) return std::nullopt;
  std::vector<int> without;
  for (const int rank : roles.producers)
    if (gpu_of_rank[static_cast<std::size_t>(rank)].empty()) without.push_back(rank);
  if (without.empty() || without.size() == roles.producers.size()) return std::nullopt;
  return fmt::format(
      "ranks {} have no GPU and encode on their CPUs, beside {} producers with one: if theirs are gone, leave these "
      "nodes out",
      describe_numbers(without), roles.producers.size() - without.size());
}

// NCCL rounds after each addition, so that equal parts beyond 2^8 of them add nothing to a bfloat16; on CPUs sums are
// float32.
std::optional<std::string> complaint_about_sums(const ParallelConfig& config, const ShardPlan& plan,
                                                torch::Device device) {
  constexpr int exact = 128;
  const int parts = std::max(plan.shards, plan.replicas);
  if (!device.is_cuda() || config.reduce_dtype.value != ReduceDtype::bfloat16 || parts <= exact) return std::nullopt;
  return fmt::format("parallel.reduce_dtype=bfloat16 loses digits in sums over {} trainers; float32 does not", parts);
}

}  // namespace millrace
