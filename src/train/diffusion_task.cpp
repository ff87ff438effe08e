#include "millrace/train/diffusion_task.h"

namespace millrace {

DiffusionTask::DiffusionTask(UNet2DConditionModel unet, NoiseSchedule schedule, BatchReceiver source,
                             ParcelReceiver& receiver, Options options)
    : unet_(std::move(unet)),
      schedule_(std::move(schedule)),
      source_(std::move(source)),
      receiver_(receiver),
      options_(std::move(options)) {}

bool DiffusionTask::next_batch(double seconds) {
  auto batch = source_.next(seconds);
  if (batch) local_batch_ = std::move(*batch);
  return batch.has_value();
}

std::optional<Overdue> DiffusionTask::overdue(double seconds) const {
  const auto stripe = source_.overdue_stripe(seconds);
  if (!stripe) return std::nullopt;
  const int producer = source_.producer_of(*stripe);
  return Overdue{fmt::format("samples of stripe {} from {}", *stripe, receiver_.producer_name(producer)),
                 options_.producers[producer]};
}

torch::Tensor DiffusionTask::loss(std::int64_t begin, std::int64_t end) {
  const auto keys = rng_keys(options_.seed, std::span(local_batch_.refs).subspan(begin, end - begin));
  const auto input = make_step_input(local_batch_.moments.slice(0, begin, end), local_batch_.text.slice(0, begin, end),
                                     options_.null_text, keys, options_.scaling_factor, options_.shift_factor,
                                     schedule_, options_.objective, options_.device);
  const auto prediction =
      unet_->forward(input.noisy.to(options_.dtype), input.timesteps, input.text.to(options_.dtype));
  record_.keep("latents", input.latents);
  record_.keep("text", input.text);
  record_.keep("noise", input.noise);
  record_.keep("noisy", input.noisy);
  record_.keep("timesteps", input.timesteps);
  record_.keep("target", input.target);
  record_.keep("weight", input.weight);
  record_.keep("prediction", prediction);
  return diffusion_loss(prediction, input).sum() / options_.global_batch;
}

std::map<int, ProducerReport> DiffusionTask::producer_reports() {
  std::map<int, ProducerReport> reports;
  for (const auto& [position, report] : source_.reports()) reports[options_.producers[position]] = report;
  return reports;
}

double DiffusionTask::queue_fill() {
  const auto slots = options_.slots * static_cast<double>(options_.producers.size());
  return slots > 0 ? std::min(1.0, receiver_.ready() / slots) : 0;
}

}  // namespace millrace
