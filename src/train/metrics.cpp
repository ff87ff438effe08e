#include "millrace/train/metrics.h"

#include <fmt/format.h>

#include <cmath>

#include "millrace/core/clock.h"
#include "millrace/core/units.h"

namespace millrace {
namespace {

constexpr MetricField fields[] = {
    {"step", "train", "The optimizer step."},
    {"samples", "train", "Samples used since the run began, also by steps whose update was left out.", true},
    {"loss", "train", "Training loss, mean over the steps since the last line."},
    {"loss_l1", "train", "Of it, of train-autoencoder: the mean absolute error, before its weight."},
    {"loss_mse", "train", "The same: the mean squared error."},
    {"loss_kl", "train", "The same: the posterior's KL divergence from the unit normal, mean per element."},
    {"grad_norm", "train", "Norm of the gradient before clipping, mean over the steps since the last line."},
    {"lr", "train", "Learning rate of the step."},
    {"images_per_second", "speed", "Images a second of all trainers together, in the time of step_ms."},
    {"step_ms", "speed",
     "Milliseconds from a step's wait for samples to its update, without what comes between steps."},
    {"data_wait_ms", "speed",
     "Milliseconds of a step that trainers waited for samples: the one that waited longest, and the others for it."},
    {"encode_images_per_second", "speed", "Images a second of all producers together while they encode."},
    {"queue_fill", "speed", "How full the queues before the trainers are, 0 to 1."},
    {"straggler", "speed", "Own time of the slowest trainer a sample over the median's, 1 where all are even."},
    {"slowest_rank", "speed", "The rank of the slowest trainer."},
    {"producer_stages", "producers", "Share of the producers' time, 0 to 1, by what they did."},
    {"skipped", "train", "Steps whose update was left out, since the run began.", true},
    {"rows", "data", "Rows of the data that were read since the run began, each counted once."},
    {"rejected", "data", "Of these the rejected ones, by their reasons."},
    {"memory_gib", "speed", "Most memory that a trainer has used so far in GiB, of its GPU where it has one."},
    {"checkpoint_step", "train", "Step of the newest checkpoint, 0 before the first."},
    {"checkpoint_age_s", "train", "Seconds of training since then, or since the run began."},
    {"gpu_utilization", "gpu", "Share of the time in which kernels ran on a trainer's GPU, mean over these, 0 to 1."},
    {"gpu_memory_gib", "gpu", "Memory taken on a trainer's GPU by all processes in GiB, mean over these."},
    {"gpu_watts", "gpu", "Power that a trainer's GPU draws in watts, mean over these."},
    {"gpu_clock_mhz", "gpu", "Lowest SM clock of a trainer's GPU at present, in MHz."},
    {"gpu_temperature", "gpu", "Highest temperature of a trainer's GPU at present, in degrees Celsius."},
    {"encode_gpu_utilization", "gpu", "Share of the time in which kernels ran on a producer's GPU, 0 to 1."},
    {"encode_gpu_memory_gib", "gpu", "Memory taken on a producer's GPU by all processes in GiB."},
    {"encode_gpu_watts", "gpu", "Power that a producer's GPU draws in watts."},
    {"validation_loss", "validation", "Loss on data.validation, with the weights that export gives."},
    {"validation_loss_by_timestep", "validation", "The same by timestep."},
    {"validation_loss_unweighted", "validation",
     "Loss on data.validation without the weights of objective.snr_gamma, where that is set."},
    {"validation_loss_unweighted_by_timestep", "validation", "The same by timestep."},
    {"validation_loss_raw", "validation",
     "Loss on data.validation with the raw weights, where validation_loss is the EMA's."},
    {"validation_loss_raw_by_timestep", "validation", "The same by timestep."},
};

nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::ordered_json stages_json(const StageShares& s) {
  const auto rounded = [](double share) { return std::round(1e4 * share) / 1e4; };
  return {{"read", rounded(s.read)},           {"decode", rounded(s.decode)},
          {"transform", rounded(s.transform)}, {"tokenise", rounded(s.tokenize)},
          {"encode", rounded(s.encode)},       {"encode_wait", rounded(s.encode_wait)},
          {"send", rounded(s.send)},           {"send_wait", rounded(s.send_wait)}};
}

nlohmann::ordered_json by_timestep_json(const ValidationLoss& loss,
                                        double ValidationLoss::Bucket::*value = &ValidationLoss::Bucket::mean) {
  nlohmann::ordered_json json;
  for (const auto& bucket : loss.by_timestep) json[bucket.name()] = finite_or_null(bucket.*value);
  return json;
}

void add_gpu(nlohmann::ordered_json& line, const std::string& prefix, const GpuUse& gpu) {
  const auto add = [&](const char* name, const GpuUse::Mean& mean) {
    if (mean.seconds > 0) line[prefix + name] = std::round(1e4 * mean.value()) / 1e4;
  };
  add("gpu_utilization", gpu.busy);
  add("gpu_memory_gib", gpu.memory_gib);
  add("gpu_watts", gpu.watts);
}

}  // namespace

std::span<const MetricField> metric_fields() {
  return fields;
}

nlohmann::ordered_json metrics_line(const Metrics& m) {
  nlohmann::ordered_json line = {{"step", m.step}, {"samples", m.samples}, {"loss", finite_or_null(m.loss)}};
  for (const auto& [name, value] : m.loss_parts) line["loss_" + name] = finite_or_null(value);
  line.update({{"grad_norm", finite_or_null(m.grad_norm)},
               {"lr", m.lr},
               {"images_per_second", m.images_per_second},
               {"step_ms", m.step_ms},
               {"data_wait_ms", m.data_wait_ms},
               {"encode_images_per_second", m.encode_images_per_second},
               {"queue_fill", m.queue_fill},
               {"straggler", std::round(1e3 * m.straggler) / 1e3},
               {"slowest_rank", m.slowest_rank},
               {"producer_stages", stages_json(m.stages)},
               {"skipped", m.skipped},
               {"rows", m.rows},
               {"rejected", m.rejected},
               {"memory_gib", m.memory_gib}});
  if (m.checkpoint)
    line.update({{"checkpoint_step", m.checkpoint->step},
                 {"checkpoint_age_s", std::round(10 * m.checkpoint->age_seconds) / 10}});
  add_gpu(line, "", m.gpu);
  if (m.gpu_clock_mhz) line["gpu_clock_mhz"] = *m.gpu_clock_mhz;
  if (m.gpu_temperature) line["gpu_temperature"] = *m.gpu_temperature;
  add_gpu(line, "encode_", m.encode_gpu);
  if (m.validation) {
    line["validation_loss"] = finite_or_null(m.validation->exported.mean);
    line["validation_weights"] = m.validation->raw ? "ema" : "raw";
    line["validation_loss_by_timestep"] = by_timestep_json(m.validation->exported);
    if (const auto& unweighted = m.validation->exported.unweighted) {
      line["validation_loss_unweighted"] = finite_or_null(*unweighted);
      line["validation_loss_unweighted_by_timestep"] =
          by_timestep_json(m.validation->exported, &ValidationLoss::Bucket::unweighted);
    }
    if (m.validation->raw) {
      line["validation_loss_raw"] = finite_or_null(m.validation->raw->mean);
      line["validation_loss_raw_by_timestep"] = by_timestep_json(*m.validation->raw);
    }
  }
  line["time"] = utc_now();
  return line;
}

std::string describe(const Metrics& m, double total_steps, double step_seconds) {
  std::string line;
  if (total_steps > 0) line = fmt::format("of {:.0f} ({:.1f}%) ", total_steps, 100 * m.step / total_steps);
  line += fmt::format("seen {} loss {:.4f} gnorm {:.3f} lr {:.2e} | {:.0f} img/s wait {:.1f}%",
                      format_count(static_cast<double>(m.samples)), m.loss, m.grad_norm, m.lr, m.images_per_second,
                      100 * m.wait_share());
  if (m.encode_images_per_second > 0)
    line += fmt::format(" | enc {:.0f} img/s q {:.0f}%", m.encode_images_per_second, 100 * m.queue_fill);
  if (m.validation) line += fmt::format(" | val {:.4f}", m.validation->exported.mean);
  if (m.gpu.busy.seconds > 0) line += fmt::format(" | gpu {:.0f}%", 100 * m.gpu.busy.value());
  if (m.gpu.watts.seconds > 0) line += fmt::format(" {:.0f} W", m.gpu.watts.value());
  line += fmt::format(" | {:.1f} GiB | elapsed {}", m.memory_gib, format_time(m.elapsed_seconds));
  if (step_seconds <= 0) step_seconds = m.step_ms / 1000;
  if (total_steps > 0 && step_seconds > 0)
    line += fmt::format(" eta {}", format_time((total_steps - static_cast<double>(m.step)) * step_seconds));
  if (m.skipped > 0) line += fmt::format(" | {} skipped", m.skipped);
  return line;
}

}  // namespace millrace
