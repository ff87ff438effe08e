#include "millrace/train/diffusion_task.h"

#include <torch/utils.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "millrace/core/hash.h"
#include "millrace/core/log.h"
#include "millrace/train/predict.h"

namespace millrace {

DiffusionTask::DiffusionTask(UNet2DConditionModel unet, NoiseSchedule schedule, BatchReceiver source,
                             ParcelReceiver& receiver, Options options)
    : unet_(std::move(unet)),
      schedule_(std::move(schedule)),
      source_(std::move(source)),
      receiver_(receiver),
      options_(std::move(options)),
      step_(options_.step) {
  options_.null_text = options_.null_text.to(options_.device);
}

// An error of samples that no step has come to need.
DiffusionTask::~DiffusionTask() {
  if (!early_failure_) return;
  try {
    std::rethrow_exception(early_failure_);
  } catch (const std::exception& error) {
    log::warning("while samples were received that are not trained: {}", error.what());
  } catch (...) {
  }
}

bool DiffusionTask::next_batch(double seconds) {
  if (early_failure_) std::rethrow_exception(std::exchange(early_failure_, nullptr));
  auto batch = early_batch_ ? std::exchange(early_batch_, std::nullopt) : source_.next(seconds);
  if (!batch) return false;
  local_batch_ = std::move(*batch);
  check_tokens();
  ++step_;
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

// Unless they are on their way.
void DiffusionTask::send(const EncodedBatch& batch, std::int64_t step, std::int64_t begin, std::int64_t end) {
  if (std::tie(sent_.step, sent_.begin, sent_.end) == std::tie(step, begin, end)) return;
  sent_ = {step, begin, end, Upload(batch.moments.slice(0, begin, end), options_.device), {}};
  if (!options_.text_encoder) sent_.text = Upload(batch.text.slice(0, begin, end), options_.device);
}

// NOTE [Looking ahead] While a GPU computes the loss of the last inputs, the next ones set out. After the last
// micro-batch these are the first ones of the next local batch, which is put together while the GPU is not through with
// the step; nobody waits for what has not arrived by then. Before next_batch has handed it out it is no part of the
// run: refs, and with them checkpoints, do not know it, and what is thrown instead of it is thrown there.
void DiffusionTask::look_ahead() {
  const auto samples = std::ssize(local_batch_.refs);
  if (end_ < samples) return send(local_batch_, step_, end_, std::min(end_ + micro_batch_, samples));
  try {
    if (!early_batch_ && !early_failure_) early_batch_ = source_.next(/*seconds=*/0);
  } catch (...) {
    early_failure_ = std::current_exception();
  }
  if (early_batch_) send(*early_batch_, step_ + 1, 0, std::min(micro_batch_, std::ssize(early_batch_->refs)));
}

// Embeddings are made only now, so that their time does not count as waiting for samples. A caption whose embeddings
// are not finite makes the loss of the step so, which the guard sees.
torch::Tensor DiffusionTask::take_text(Sent& sent) {
  if (!options_.text_encoder) return sent.text.take();
  return options_.text_encoder->encode(local_batch_.text.slice(0, sent.begin, sent.end));
}

std::vector<std::int64_t> DiffusionTask::draw_timesteps() const {
  const auto keys = rng_keys(options_.seed, local_batch_.refs);
  if (options_.objective.timesteps == ObjectiveConfig::Timesteps::uniform)
    return uniform_timesteps(keys, schedule_.size());
  return stratified_timesteps(keys, options_.seed, {step_, options_.global_batch, options_.first_place},
                              schedule_.size());
}

// What is dropped depends on the step and the place in the batch, so that a run that goes on drops the same.
void DiffusionTask::seed_dropout(std::int64_t begin) const {
  if (unet_->config().dropout == 0) return;
  const auto first = options_.first_place + begin;
  torch::manual_seed(options_.seed ^ hash64(fmt::format("dropout in step {} from place {}", step_, first)));
}

std::vector<torch::Tensor> DiffusionTask::inputs(std::int64_t begin, std::int64_t end) {
  if (begin == 0) micro_batch_ = end;
  end_ = end;
  const auto keys = rng_keys(options_.seed, std::span(local_batch_.refs).subspan(begin, end - begin));
  const auto timesteps = std::span(timesteps_).subspan(begin, end - begin);
  send(local_batch_, step_, begin, end);
  auto sent = std::exchange(sent_, {});
  const auto text = take_text(sent);
  const auto input = make_step_input(sent.moments.take(), text, options_.null_text, keys, timesteps,
                                     options_.latent_scale, schedule_, options_.objective, options_.device);
  record_.keep("latents", input.latents);
  record_.keep("noise", input.noise);
  record_.keep("timesteps", input.timesteps);
  record_.keep("target", input.target);
  record_.keep("weight", input.weight);
  auto inputs = pass_inputs(input, options_.dtype);
  const auto of_unet = step_input(inputs);
  record_.keep("text", of_unet.text);  // as rounded as the U-Net gets it
  record_.keep("noisy", of_unet.noisy);
  seed_dropout(begin);
  return inputs;
}

torch::Tensor DiffusionTask::loss(const std::vector<torch::Tensor>& inputs) {
  const auto input = step_input(inputs);
  const auto prediction = predict(unet_, input, options_.dtype);
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
