#include "train/start_table.h"

#include <fmt/ranges.h>

#include "millrace/core/log.h"
#include "millrace/core/units.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_watch.h"
#include "train/complaints.h"

namespace millrace {

static std::string describe_batch(const TrainPlan& plan) {
  const auto& routing = plan.input.routing;
  const int global = plan.config.batch.global, micro = plan.micro_batch, trainers = routing.trainers();
  const auto* const chosen = plan.config.batch.micro.is_auto() ? "; batch.micro=auto" : "";
  if (routing.is_even())
    return fmt::format("{} = {} x {} trainer{} x {} accumulated{}", global, micro, trainers, trainers == 1 ? "" : "s",
                       global / (micro * trainers), chosen);
  return fmt::format("{} on {} trainers ({}), micro-batches of at most {}{}", global, trainers,
                     describe_shares(routing), micro, chosen);
}

// "5 pictures every 100 steps, by DDIMScheduler in 25 steps, as no sampler here does what the pipeline's DDPMScheduler
// says".
static std::string describe_pictures(const TrainPlan& plan) {
  const auto own = plan.scheduler.class_name(), used = plan.sampling->scheduler.class_name();
  return fmt::format("{} pictures every {}, by {} in {} steps{}", plan.pictures.size(),
                     to_string(plan.config.samples.every), used, plan.sampling->steps,
                     own != used ? fmt::format(", as no sampler here does what the pipeline's {} says", own) : "");
}

void print_start_row(const char* name, const std::string& text) {
  log::info("  {:<12} {}", name, text);
}

std::string describe(const OptimConfig& optim) {
  auto text = fmt::format("AdamW lr {} wd {}", optim.lr, optim.weight_decay);
  if (optim.warmup.count > 0) text += ", warm-up " + to_string(optim.warmup);
  if (optim.schedule != Schedule::constant) text += fmt::format(", {}", to_string(optim.schedule));
  if (optim.clip) text += fmt::format(", clip {}", *optim.clip);
  return text;
}

std::string describe(const EmaConfig& ema) {
  if (!ema.enabled) return "off";
  return fmt::format("{}{}", ema.decay, ema.warmup ? " with warm-up" : "");
}

std::string describe(const ObjectiveConfig& objective) {
  std::string text = to_string(objective.prediction);
  if (objective.timesteps == ObjectiveConfig::Timesteps::stratified) text += ", stratified timesteps";
  if (objective.zero_terminal_snr) text += ", zero terminal SNR";
  if (objective.snr_gamma) text += fmt::format(", min-SNR {}", *objective.snr_gamma);
  if (objective.noise_offset > 0) text += fmt::format(", noise offset {}", objective.noise_offset);
  if (objective.input_perturbation > 0) text += fmt::format(", input perturbation {}", objective.input_perturbation);
  return text + fmt::format(", caption drop {}", objective.caption_dropout);
}

void print_start_table(const Session& session, const TrainPlan& plan) {
  const auto& c = plan.config;
  log::info("millrace {} train", MILLRACE_VERSION);
  print_start_row("ranks", fmt::format("{} on {}: {}", session.world.size(), describe_hosts(session.world.hosts()),
                                       describe(plan.roles)));
  const auto uuid = gpu_uuid(session.device);
  print_start_row("device",
                  fmt::format("{}{}, {} thread{} a rank, model in {}", device_name(session.device),
                              uuid.empty() ? "" : " " + uuid, session.threads, session.threads == 1 ? "" : "s",
                              dtype_name(parse_dtype(c.model.dtype, session.device))));
  print_start_row("pipeline", fmt::format("{}, U-Net {}", c.model.pipeline.value,
                                          plan.start.checkpoint                                ? "from a checkpoint"
                                          : c.model.unet.init == ModelConfig::Init::pretrained ? "pretrained"
                                                                                               : "with fresh weights"));
  const bool is_synthetic = c.data.train.type == SourceConfig::Type::synthetic;
  print_start_row("data", (is_synthetic ? "synthetic images, " : "") + describe(plan.input.data));
  std::vector<std::string> filters;
  for (const auto& [field, condition] : c.data.train.filters)
    filters.push_back(fmt::format("{}: {}", field, condition));
  if (!filters.empty()) print_start_row("filters", fmt::format("{}", fmt::join(filters, ", ")));
  print_start_row("shuffle", describe(plan.shuffle));
  print_start_row("batch", describe_batch(plan));
  print_start_row("encodings", describe(plan.input.encoding));
  print_start_row("handoff", fmt::format("parcels of {} samples, at most {}", plan.input.parcel.samples(),
                                         format_bytes(plan.input.parcel_bytes)));
  print_start_row("objective", describe(c.objective));
  print_start_row("optimizer",
                  fmt::format("{}, {}, EMA {}", describe(c.optim), to_string(c.parallel.strategy), describe(c.ema)));
  if (plan.validation) print_start_row("validation", describe(*plan.validation, c.validation));
  if (plan.sampling) print_start_row("samples", describe_pictures(plan));
  print_start_row("duration", fmt::format("{}, from step {}", to_string(c.duration), plan.start.state.step));
  print_start_row("run", c.run.dir.value);
  for (const auto& warning : plan.warnings) log::warning("{}", warning);
  warn(complaint_about_warmup(c.optim, c.duration, c.batch.global, plan.start.state.point()));
  if (!plan.start.checkpoint) warn(complaint_about_ema(c));
  if (!plan.shuffle.rows.complaint.empty()) log::warning("{}", plan.shuffle.rows.complaint);
  warn(complaint_about_mixing(plan.shuffle, plan.input.data));
  for (const auto& warning : memory_warnings(plan.shuffle)) log::warning("{}", warning);
}

void log_planned_memory(const Session& session, const TrainPlan& plan) {
  const auto device = session.device;
  constexpr double program_bytes = 0;  // of files, which the ranks of a host share and the kernel may drop
  const auto memory = run_memory(plan, device, program_bytes);
  const auto tensors = memory.tensors(plan.micro_batch, plan.shards);
  log::info("memory of a trainer's tensors, as planned: {} that last, {} for a micro-batch of {}, at most {} at once",
            format_bytes(tensors.state.lasting()), format_bytes(tensors.activations), plan.micro_batch,
            format_bytes(tensors.peak()));
  const bool encodes = trainers_encode(plan);
  const double planned = memory.trainer(plan.micro_batch, plan.shards, encodes);
  const double copy = memory.copy_for_checkpoints(plan.shards);
  const auto total = static_cast<double>(plan.own_memory);
  const auto size = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  // A larger copy finds no room whenever it is looked for. A smaller one may find some between two steps, and the next
  // step then lacks it.
  const double left_by_state = total - static_cast<double>(tensors.state.lasting());
  const auto text = fmt::format("with {}{} about {} of the {} that {} may have", encodes ? "the encoders and " : "",
                                device.is_cuda() ? "CUDA" : "buffers", size(planned), size(total),
                                device.is_cuda() ? "each rank of this GPU" : "each rank of this host");
  if (planned <= total) {
    log::info("{}", text);
  } else if (planned - copy <= total && copy > left_by_state) {
    log::info("{}: it fits without the {} for a copy of the state, and training waits while checkpoints are written",
              text, size(copy));
  } else {
    log::warning("{}: it may not suffice; docs/operations.md, \"What fits a GPU\", has what helps", text);
  }
}

}  // namespace millrace
