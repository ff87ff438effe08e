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
  if (!batch) return false;
  local_batch_ = std::move(*batch);
  check_tokens();
  ++options_.step;
  timesteps_ = draw_timesteps();
  return true;
}

// Here, where an error lets all trainers save what they have reached.
void DiffusionTask::check_tokens() const {
  if (!options_.text_encoder) return;
  for (std::size_t i = 0; i < local_batch_.refs.size(); ++i)
    options_.text_encoder->check(local_batch_.text[static_cast<std::int64_t>(i)], local_batch_.refs[i].id);
}

std::optional<Overdue> DiffusionTask::overdue(double seconds) const {
  const auto stripe = source_.overdue_stripe(seconds);
  if (!stripe) return std::nullopt;
  const int producer = source_.producer_of(*stripe);
  return Overdue{fmt::format("samples of stripe {} from {}", *stripe, receiver_.producer_name(producer)),
                 options_.producers[producer]};
}

// Of samples [begin, end) of the local batch. Made only now, so that their time does not count as waiting for samples.
// A caption whose embeddings are not finite makes the loss of the step so, which the guard sees.
torch::Tensor DiffusionTask::text_embeddings(std::int64_t begin, std::int64_t end) {
  const auto text = local_batch_.text.slice(0, begin, end);
  return options_.text_encoder ? options_.text_encoder->encode(text) : text;
}

std::vector<std::int64_t> DiffusionTask::draw_timesteps() const {
  const auto keys = rng_keys(options_.seed, local_batch_.refs);
  if (options_.objective.timesteps == ObjectiveConfig::Timesteps::uniform)
    return uniform_timesteps(keys, schedule_.size());
  return stratified_timesteps(keys, options_.seed, {options_.step, options_.global_batch, options_.first_place},
                              schedule_.size());
}

torch::Tensor DiffusionTask::loss(std::int64_t begin, std::int64_t end) {
  const auto keys = rng_keys(options_.seed, std::span(local_batch_.refs).subspan(begin, end - begin));
  const auto timesteps = std::span(timesteps_).subspan(begin, end - begin);
  const auto input = make_step_input(local_batch_.moments.slice(0, begin, end), text_embeddings(begin, end),
                                     options_.null_text, keys, timesteps, options_.scaling_factor,
                                     options_.shift_factor, schedule_, options_.objective, options_.device);
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
