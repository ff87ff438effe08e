#include "millrace/models/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/io/finite.h"
#include "millrace/io/json.h"
#include "millrace/io/safetensors_writer.h"
#include "millrace/io/weights.h"
#include "millrace/nn/weights.h"

namespace millrace {

namespace {

constexpr std::size_t max_listed_problems = 5;

// What diffusers called the attention layers of the autoencoder before version 0.12.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> old_attention_names = {{
    {".query.", ".to_q."},
    {".key.", ".to_k."},
    {".value.", ".to_v."},
    {".proj_attn.", ".to_out.0."},
}};

// What transformers' text encoders have in files without the prefix `text_model.`.
constexpr std::array<std::string_view, 3> text_model_parts = {"embeddings.", "encoder.", "final_layer_norm."};

// What else a CLIPModel's file, or that of a CLIPTextModelWithProjection, holds beside the text encoder.
constexpr std::array<std::string_view, 4> other_clip_parts = {"vision_model.", "visual_projection.", "text_projection.",
                                                              "logit_scale"};

bool is_of_whole_clip(std::string_view name, std::string_view stem) {
  return stem == transformers_stem &&
         std::ranges::any_of(other_clip_parts, [&](std::string_view part) { return name.starts_with(part); });
}

// Today's name of a tensor in a file; nothing for tables that are no weights.
std::optional<std::string> current_name(std::string name, std::string_view stem) {
  if (name.ends_with("position_ids")) return std::nullopt;
  if (stem == transformers_stem)
    for (const auto part : text_model_parts)
      if (name.starts_with(part)) return "text_model." + name;
  if (name.find(".attentions.") == std::string::npos) return name;
  for (const auto& [old_part, new_part] : old_attention_names) {
    const auto position = name.find(old_part);
    if (position != std::string::npos) return name.replace(position, old_part.size(), new_part);
  }
  return name;
}

// The oldest files have the autoencoder's attention matrices as 1x1 convolutions: (C, C, 1, 1) for (C, C).
bool is_old_convolution(std::string_view name, at::IntArrayRef wanted, const std::vector<std::int64_t>& found) {
  const bool is_attention = name.find(".to_") != name.npos && name.find("transformer_blocks") == name.npos;
  return is_attention && wanted.size() == 2 && found.size() == 4 && found[0] == wanted[0] && found[1] == wanted[1] &&
         found[2] == 1 && found[3] == 1;
}

torch::Dtype weight_dtype(const TensorInfo& info, const fs::path& file) {
  switch (info.dtype) {
    case DType::f32:
      return torch::kFloat32;
    case DType::f16:
      return torch::kFloat16;
    case DType::bf16:
      return torch::kBFloat16;
    default:  // also the eight bits of files that are made for painting: too coarse to train from
      throw Error(
          Exit::io,
          fmt::format("{}: '{}' is {}; weights are F32, F16 or BF16", file.string(), info.name, to_string(info.dtype)),
          "take the model's weights in one of these types; diffusers (transformers for a text encoder) converts "
          "a folder: CLASS.from_pretrained('FOLDER', torch_dtype=torch.float32).save_pretrained('NEW_FOLDER')");
  }
}

// A module's parameter and the tensor of the file that fills it.
struct Match {
  torch::Tensor parameter;
  std::string name_in_file;
};

// Which tensors of the file fill which parameters, and what does not fit.
struct Matching {
  std::vector<Match> matches;
  std::vector<std::string> problems;
};

Matching match(const torch::nn::Module& module, const Weights& weights, std::string_view stem) {
  Tensors wanted = weights_of(module);
  Matching result;
  for (const std::string& name_in_file : weights.names()) {
    const auto name = current_name(name_in_file, stem);
    if (!name) continue;
    const auto parameter = wanted.extract(*name);
    if (parameter.empty()) {
      if (is_of_whole_clip(*name, stem)) continue;
      result.problems.push_back(fmt::format("'{}' is unexpected", name_in_file));
      continue;
    }
    const auto& shape = weights.info(name_in_file).shape;
    const at::IntArrayRef wanted_shape = parameter.mapped().sizes();
    if (wanted_shape != at::IntArrayRef(shape) && !is_old_convolution(*name, wanted_shape, shape)) {
      result.problems.push_back(
          fmt::format("'{}' is ({}), not ({})", name_in_file, fmt::join(shape, ", "), fmt::join(wanted_shape, ", ")));
    }
    result.matches.push_back({parameter.mapped(), name_in_file});
  }
  for (const auto& [name, parameter] : wanted) result.problems.push_back(fmt::format("'{}' is missing", name));
  return result;
}

void refuse_mismatch(const fs::path& file, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  const std::span shown(problems.data(), std::min(problems.size(), max_listed_problems));
  const std::string rest =
      problems.size() > shown.size() ? fmt::format("; and {} more", problems.size() - shown.size()) : "";
  throw Error(Exit::io,
              fmt::format("{} does not fit its config.json: {}{}", file.string(), fmt::join(shown, "; "), rest),
              "the folder mixes files of two models, a file is incomplete, or model.unet.config gives another shape");
}

std::span<const std::byte> host_bytes(const torch::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

// The same numbers in another type. Error(io) when one of them is too large for it.
torch::Tensor converted(const torch::Tensor& tensor, torch::Dtype dtype, const fs::path& file,
                        const std::string& name) {
  if (tensor.scalar_type() == dtype) return tensor;
  const torch::Tensor result = tensor.to(dtype);
  const auto overflow = find_non_finite(try_file_dtype(dtype).value(), host_bytes(result));
  if (!overflow) return result;
  const double value = tensor.flatten()[static_cast<std::int64_t>(overflow->element)].item<double>();
  throw Error(Exit::io,
              fmt::format("{}: '{}' holds {} (element {}), which is {} in {}", file.string(), name, value,
                          overflow->element, overflow->value, torch::toString(dtype)),
              "choose a dtype with a wider range: float32 or bfloat16");
}

void copy_from_file(const torch::Tensor& parameter, const Weights& weights, const std::string& name) {
  const TensorInfo& info = weights.info(name);
  const fs::path& file = weights.file_of(name);
  const torch::Tensor staging = torch::empty(parameter.sizes(), weight_dtype(info, file));
  weights.read(name, {static_cast<std::byte*>(staging.data_ptr()), staging.nbytes()});
  refuse_non_finite(file, name, info.dtype, host_bytes(staging));
  parameter.copy_(converted(staging, parameter.scalar_type(), file, name));
}

std::string dotted(std::string_view variant) {
  return variant.empty() ? "" : fmt::format(".{}", variant);
}

std::string shard_file(std::string_view stem, std::string_view variant, std::size_t shard, std::size_t shards) {
  if (shards == 1) return fmt::format("{}{}.safetensors", stem, dotted(variant));
  return fmt::format("{}{}-{:05}-of-{:05}.safetensors", stem, dotted(variant), shard + 1, shards);
}

std::uint64_t bytes_of(const TensorSpec& spec) {
  return try_byte_count(spec.dtype, spec.shape).value();
}

// Fills shards in the order of the names; a tensor above the limit gets a shard of its own.
std::vector<std::vector<TensorSpec>> plan_shards(const Tensors& tensors, DType dtype, std::uint64_t max_shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t used_bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    TensorSpec spec{name, dtype, tensor.sizes().vec()};
    const std::uint64_t bytes = bytes_of(spec);
    if (!shards.back().empty() && used_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      used_bytes = 0;
    }
    used_bytes += bytes;
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

void write_shard(const fs::path& file, const std::vector<TensorSpec>& specs, const Tensors& tensors,
                 torch::Dtype dtype) {
  SafetensorsWriter writer(file, specs);
  for (const TensorSpec& spec : writer.order()) {
    const torch::Tensor host = tensors.at(spec.name).detach().to(torch::kCPU, dtype).contiguous();
    writer.write(spec.name, host_bytes(host));
  }
  writer.commit();
}

void write_index(const fs::path& file, const nlohmann::json& weight_map, std::uint64_t total_bytes) {
  write_file_atomically(file, format_json({{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}}));
}

}  // namespace

void load_weights(torch::nn::Module& module, const fs::path& folder, std::string_view stem, std::string_view variant) {
  const torch::NoGradGuard no_grad;
  const Weights weights = open_weights(folder, stem, variant);
  const Matching matching = match(module, weights, stem);
  refuse_mismatch(folder / fmt::format("{}{}.safetensors", stem, dotted(variant)), matching.problems);
  for (const Match& found : matching.matches) copy_from_file(found.parameter, weights, found.name_in_file);
}

void refuse_non_finite_weights(const fs::path& folder, const std::function<bool(const fs::path& file)>& is_meant) {
  std::vector<std::byte> bytes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors" || !is_meant(entry.path())) continue;
    const SafetensorsFile file(entry.path());
    for (const TensorInfo& info : file.tensors()) {
      bytes.resize(info.end - info.begin);
      file.read(info, bytes);
      refuse_non_finite(file.path(), info.name, info.dtype, bytes);
    }
  }
}

std::vector<std::string> weight_problems(const torch::nn::Module& module, const fs::path& folder, std::string_view stem,
                                         std::string_view variant) {
  return match(module, open_weights(folder, stem, variant), stem).problems;
}

void save_weights(const Tensors& tensors, const fs::path& folder, std::string_view stem, std::string_view variant,
                  torch::Dtype dtype, std::uint64_t max_shard_bytes) {
  const auto shards = plan_shards(tensors, try_file_dtype(dtype).value(), max_shard_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shard_file(stem, variant, i, shards.size());
    write_shard(folder / file, shards[i], tensors, dtype);
    for (const TensorSpec& spec : shards[i]) {
      weight_map[spec.name] = file;
      total_bytes += bytes_of(spec);
    }
  }
  if (shards.size() > 1) {
    write_index(folder / fmt::format("{}.safetensors.index{}.json", stem, dotted(variant)), weight_map, total_bytes);
  }
}

}  // namespace millrace
