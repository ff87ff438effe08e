#include "train/run_memory.h"

#include <algorithm>
#include <utility>

#include "millrace/checkpoint/file_plan.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/core/error.h"
#include "millrace/core/units.h"
#include "millrace/models/encoder_cost.h"
#include "millrace/models/unet_cost.h"
#include "millrace/nn/device.h"
#include "millrace/nn/weights.h"
#include "train/training_pass.h"

namespace millrace {
namespace {

// Beside the tensors, on a GPU: the CUDA context, and what cuDNN and cuBLAS want to work with.
constexpr double gpu_overhead_bytes = 1.5 * gib;
// On a CPU the program itself counts, and what MPI, readers and queues add to it; where checkpoints are written, the
// buffers and lists of that. Freed blocks that fit no later tensor stay as well: a share of the activations. All were
// measured on runs of small networks, with checkpoints and without. The same run takes up to 12 % less or more on
// another processor, as oneDNN and MKL choose their code by it, and from one time to the next, as threads leave memory
// behind: this is the middle of what was seen.
constexpr double cpu_overhead_bytes = 136 << 20, cpu_save_bytes = 24 << 20;
constexpr double cpu_waste = 1.2;

std::vector<ParameterSpec> shapes_of(const UNet2DConditionModel& unet) {
  std::vector<ParameterSpec> parameters;
  for (const auto& item : unet->named_parameters()) parameters.push_back({item.key(), item.value().sizes().vec()});
  return parameters;
}

}  // namespace

RunMemory::RunMemory(const TrainConfig& config, const RunShapes& shapes, EncodingShape encoding, torch::Device device,
                     double program_bytes)
    : config_(config),
      encoding_(std::move(encoding)),
      device_(device),
      program_bytes_(program_bytes),
      unet_(UNet2DConditionConfig::from_json(shapes.unet, shapes.unet_file)),
      unet_parameters_(shapes_of(UNet2DConditionModel(unet_))),
      train_dtype_(parse_dtype(config.model.dtype, device_)),
      encode_dtype_(parse_dtype(config.encode.dtype, device_)) {
  if (!shapes.vae.is_null()) {
    vae_ = AutoencoderKLConfig::from_json(shapes.vae);
    vae_parameters_ = count_parameters(*AutoencoderKL(*vae_));
  }
  if (!shapes.text_encoder.is_null())
    text_parameters_ = count_parameters(*CLIPTextModel(CLIPTextConfig::from_json(shapes.text_encoder)));
}

std::int64_t RunMemory::unet_elements() const {
  std::int64_t elements = 0;
  for (const auto& parameter : unet_parameters_) elements += parameter.elements();
  return elements;
}

double RunMemory::trainer(int micro_batch, const ShardPlan& shards, bool encodes) const {
  return overhead() + training(micro_batch, shards) + (encodes ? encoders(config_.encode.batch_size) : 0);
}

double RunMemory::encoder(int batch_size) const {
  return overhead() + encoders(batch_size);
}

int RunMemory::fitting_micro_batch(double total_bytes, const ShardPlan& shards, bool encodes) const {
  const auto bytes = [&](int images) { return trainer(images, shards, encodes); };
  const double usable = usable_share() * total_bytes;
  const int fitting = fitting_batch(usable, bytes);
  if (fitting > 0) return fitting;
  const auto text = [](double number) { return format_bytes(static_cast<std::uint64_t>(number)); };
  throw Error(Exit::usage,
              fmt::format("batch.micro=auto: a trainer with one image wants {}, of {} it may have {}", text(bytes(1)),
                          text(total_bytes), text(usable)),
              fmt::format("{}{}{}parallel.strategy=full_shard over more trainers; batch.micro=1 tries it all the same",
                          config_.model.gradient_checkpointing ? "" : "model.gradient_checkpointing=true, ",
                          encodes ? "a smaller encode.batch_size, a latent cache (data.train.type=latents), " : "",
                          config_.ema.enabled ? "ema.enabled=false, " : ""));
}

double RunMemory::overhead() const {
  return on_gpus() ? gpu_overhead_bytes : cpu_overhead_bytes + program_bytes_;
}

RunMemory::Tensors RunMemory::tensors(int micro_batch, const ShardPlan& shards) const {
  const auto pass = training_pass(config_.model, micro_batch, encoding_.moments[1], encoding_.moments[2], device_);
  const double passes = passes_in_memory(config_, unet_, shards, device_);
  return {state_of(shards),
          static_cast<std::int64_t>(passes * static_cast<double>(unet_activation_bytes(unet_, pass)))};
}

double RunMemory::training(int micro_batch, const ShardPlan& shards) const {
  auto needed = tensors(micro_batch, shards);
  if (!on_gpus()) needed.activations = static_cast<std::int64_t>(cpu_waste * static_cast<double>(needed.activations));
  auto bytes = static_cast<double>(needed.peak());
  if (encoding_.has_tokens()) bytes += text_encoder();
  if (!on_gpus()) bytes += checkpoints(shards) + validation(shards);
  return bytes;
}

double RunMemory::encoders(int batch_size) const {
  ensure(vae_.has_value(), "the VAE of those who encode is known");
  const auto side = config_.transform.resolution;
  const auto element = static_cast<std::int64_t>(c10::elementSize(encode_dtype_));
  return static_cast<double>(vae_parameters_ * element +
                             vae_encode_bytes(*vae_, batch_size, side, side, element, device_.type())) +
         (encoding_.has_tokens() ? 0 : text_encoder());
}

double RunMemory::text_encoder() const {
  return static_cast<double>(text_parameters_) * static_cast<double>(c10::elementSize(encode_dtype_));
}

double RunMemory::checkpoints(const ShardPlan& shards) const {
  const double copy = copy_for_checkpoints(shards);
  return copy > 0 ? copy + cpu_save_bytes : 0;
}

// A writer's part of weights, both moments and the EMA in float32. It is kept from one checkpoint to the next.
double RunMemory::copy_for_checkpoints(const ShardPlan& shards) const {
  if (on_gpus() || !config_.checkpoint.every) return 0;
  const auto state = state_of(shards);
  const auto weights = state.moments / 2, shard = weights + state.moments + state.ema;
  const FilePlan files(layout_of(shards), shards, CheckpointWriter::Options{}.max_files);
  return static_cast<double>(shard) * shards.shards / files.files();
}

// Each trainer's part of data.validation, which it keeps.
double RunMemory::validation(const ShardPlan& shards) const {
  if (!config_.data.validation) return 0;
  const auto samples = static_cast<double>(config_.validation.batches) * config_.batch.global;
  return samples * static_cast<double>(encoding_bytes(encoding_)) / (shards.shards * shards.replicas);
}

FlatLayout RunMemory::layout_of(const ShardPlan& shards) const {
  return plan_flat_layout(unet_parameters_, config_.parallel.bucket_elements(), shards.shards);
}

StateMemory RunMemory::state_of(const ShardPlan& shards) const {
  return plan_state_memory(layout_of(shards), shards, config_.parallel, train_dtype_, config_.ema.enabled,
                           /*overlaps=*/on_gpus());
}

std::int64_t share_of_memory(std::uint64_t bytes, const std::string& device, const std::vector<std::string>& devices) {
  const auto sharing = static_cast<std::uint64_t>(std::ranges::count(devices, device));
  return static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, std::uint64_t{1} << 50) / sharing);
}

int fitting_batch(double limit, const std::function<double(int)>& bytes) {
  int fits = 0, beyond = 1;
  while (beyond <= 4096 && bytes(beyond) <= limit) fits = std::exchange(beyond, 2 * beyond);
  while (beyond - fits > 1) {
    const int middle = (fits + beyond) / 2;
    (bytes(middle) <= limit ? fits : beyond) = middle;
  }
  return fits;
}

}  // namespace millrace
