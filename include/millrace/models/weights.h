#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/io/weights.h"
#include "millrace/models/tensors.h"

// The weight files of diffusers and transformers folders.
namespace millrace {

// Above this many bytes of tensors the reference writers start another file.
inline constexpr std::uint64_t default_shard_bytes = 10'000'000'000;

// Fills all parameters of `module`, which keeps its dtype and device, from FOLDER/STEM[.VARIANT].safetensors or its
// shards; an empty variant is the plain file. fp32, fp16 and bf16 are taken, so are the old names of the VAE's
// attention and text encoders without prefix. Error(io) names file and tensor when one is missing, unexpected, of
// another shape or damaged, or holds NaN, an infinity or a number that becomes infinite in the module's dtype.
void load_weights(torch::nn::Module& module, const std::filesystem::path& folder, std::string_view stem,
                  std::string_view variant = "");

// Reads the safetensors files of a folder that are meant, by default all, whatever their variants and names. Error(io)
// names file and tensor of a NaN or an infinity.
void refuse_non_finite_weights(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::path& file)>& is_meant = [](const auto&) { return true; });

// The tensors that are missing, unexpected or of another shape, one sentence each; reads headers, not weights.
std::vector<std::string> weight_problems(const torch::nn::Module& module, const std::filesystem::path& folder,
                                         std::string_view stem, std::string_view variant = "");

// Writes `tensors` to FOLDER/STEM[.VARIANT].safetensors in `dtype` (fp32, fp16, bf16), contiguous, sorted by name;
// above `max_shard_bytes` to shards with an index. One tensor at a time is copied to the host.
void save_weights(const Tensors& tensors, const std::filesystem::path& folder, std::string_view stem,
                  std::string_view variant = "", torch::Dtype dtype = torch::kFloat32,
                  std::uint64_t max_shard_bytes = default_shard_bytes);

}  // namespace millrace
