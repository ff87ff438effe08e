#include "millrace/evaluate/feature_network.h"

#include <torch/csrc/jit/runtime/operator.h>
#include <torch/script.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "millrace/core/error.h"
#include "millrace/image/pillow_resize.h"
#include "millrace/nn/torch_error.h"

namespace millrace {
namespace {

constexpr int side = 299;  // of Inception-v3's input

// NOTE [A network is a program]: TorchScript may call LibTorch's operators that write and read files, and some of it
// runs while it is loaded (__setstate__), so that looking at its graphs would come too late. Without these operators
// LibTorch refuses such code before any of it runs. Nothing else of this program is TorchScript.
constexpr std::array file_operators = {"aten::save", "aten::from_file"};

void take_away_file_operators() {
  for (const char* name : file_operators) {
    const auto known = torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name));
    for (const auto& one : known) torch::jit::deregisterOperator(one->schema());
  }
}

// What LibTorch's compiler says of the network's code.
[[noreturn]] void refuse_code(const std::filesystem::path& file, const std::string& error) {
  for (const char* name : file_operators)
    if (error.find(fmt::format("Unknown builtin op: {}.", name)) != error.npos)
      throw Error(Exit::io, fmt::format("evaluate.features: {} writes or reads files, by {}", file.string(), name),
                  "no network of features needs that: where is it from?");
  fail(Exit::io, "evaluate.features: {}: {}", file.string(), error);
}

// What LibTorch says while the network runs, where only its words tell whether that is the GPU's matter.
[[noreturn]] void fail_to_run(const std::filesystem::path& file, std::string_view error) {
  if (tells_of_too_little_memory(error))
    throw Error(Exit::usage, fmt::format("evaluate.features: {}: {}", file.string(), error),
                "a smaller evaluate.batch_size");
  const bool is_of_gpu = error.find("CUDA error") != error.npos || error.find("CUDA driver error") != error.npos;
  fail(is_of_gpu ? Exit::suspect_node : Exit::io, "evaluate.features: {}: {}", file.string(), error);
}

// f32 (B, 3, 299, 299) in 0..255.
torch::Tensor clean_pixels(std::span<const Image> images) {
  auto batch = torch::empty({std::ssize(images), 3, side, side});
  float* to = batch.data_ptr<float>();
  for (const auto& image : images)
    for (const float level : resize_bicubic_float(image, side, side)) *to++ = std::clamp(level, 0.0F, 255.0F);
  return batch;
}

// u8 (1, 3, H, W).
torch::Tensor raw_pixels(const Image& image) {
  auto pixels = torch::empty({image.height, image.width, 3}, torch::kUInt8);
  std::copy(image.pixels.begin(), image.pixels.end(), pixels.data_ptr<std::uint8_t>());
  return pixels.permute({2, 0, 1}).unsqueeze(0).contiguous();
}

}  // namespace

struct FeatureNetwork::Impl {
  std::filesystem::path file;
  torch::jit::Module module;
  FeatureResize resize;
  torch::Device device;
  bool has_layers;

  torch::Tensor answer(torch::jit::Module part, std::vector<torch::IValue> inputs,
                       const std::unordered_map<std::string, torch::IValue>& named = {}) const {
    torch::IValue out;
    try {
      out = part.get_method("forward")(std::move(inputs), named);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::AcceleratorError&) {
      throw;
    } catch (const c10::Error& error) {
      fail_to_run(file, error.what_without_backtrace());
    } catch (const std::runtime_error& error) {  // the same from within TorchScript's interpreter, as texts
      fail_to_run(file, error.what());
    }
    if (!out.isTensor()) fail(Exit::io, "evaluate.features: {}: its answer is no tensor", file.string());
    return out.toTensor();
  }

  torch::Tensor clean(std::span<const Image> images) const {
    const auto pixels = clean_pixels(images).to(device);
    return has_layers ? answer(module.attr("layers").toModule(), {(pixels - 128) / 128}) : answer(module, {pixels});
  }

  // One by one where sizes differ.
  torch::Tensor legacy(std::span<const Image> images) const {
    std::vector<torch::Tensor> pixels;
    for (const auto& image : images) pixels.push_back(raw_pixels(image));
    const auto ask = [&](const torch::Tensor& x) {
      return answer(module, {x.to(device)}, {{"return_features", true}}).flatten(1);
    };
    const bool is_even = std::ranges::all_of(pixels, [&](const auto& x) { return x.sizes() == pixels[0].sizes(); });
    if (is_even) return ask(torch::cat(pixels));
    std::vector<torch::Tensor> rows;
    for (const auto& x : pixels) rows.push_back(ask(x));
    return torch::cat(rows);
  }
};

FeatureNetwork::FeatureNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FeatureNetwork::~FeatureNetwork() = default;
FeatureNetwork::FeatureNetwork(FeatureNetwork&&) noexcept = default;
FeatureNetwork& FeatureNetwork::operator=(FeatureNetwork&&) noexcept = default;

FeatureNetwork FeatureNetwork::load(const std::filesystem::path& file, FeatureResize resize, torch::Device device) {
  if (!std::filesystem::is_regular_file(file)) fail(Exit::io, "evaluate.features: {}: no such file", file.string());
  take_away_file_operators();
  auto impl = std::make_unique<Impl>(Impl{file, {}, resize, device, false});
  try {
    impl->module = torch::jit::load(file.string(), device);
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const torch::jit::ErrorReport& error) {
    refuse_code(file, error.what());
  } catch (const c10::Error& error) {
    if (tells_of_too_little_memory(error.msg())) throw;
    throw Error(
        Exit::io, fmt::format("evaluate.features: {} is no TorchScript file", file.string()),
        "torch.jit.trace(network.eval(), torch.zeros(1, 3, 299, 299)).save(FILE) makes one of any PyTorch network; "
        "a file of weights alone (.pth, .ckpt, .safetensors) has to be loaded into its network first");
  }
  impl->module.eval();
  impl->has_layers = impl->module.hasattr("layers") && impl->module.attr("layers").isModule();
  if (resize == FeatureResize::legacy && !impl->has_layers)
    throw Error(Exit::usage, fmt::format("evaluate.resize: {} has no resize of its own", file.string()),
                "legacy is for StyleGAN's Inception file; evaluate.resize=clean fits every network");
  return FeatureNetwork(std::move(impl));
}

torch::Tensor FeatureNetwork::features(std::span<const Image> images) {
  const torch::NoGradGuard no_grad;
  const auto out = impl_->resize == FeatureResize::clean ? impl_->clean(images) : impl_->legacy(images);
  if (out.dim() < 1 || out.size(0) != std::ssize(images))
    fail(Exit::io, "evaluate.features: {}: {} answers for {} pictures", impl_->file.string(),
         out.dim() < 1 ? 0 : out.size(0), images.size());
  const auto rows = out.flatten(1).to(torch::kCPU, torch::kFloat32).contiguous();
  if (!rows.isfinite().all().item<bool>())
    fail(Exit::io, "evaluate.features: {}: its answer is not finite", impl_->file.string());
  return rows;
}

// Of a picture with all levels: of one without any contrast a network that normalizes its input knows none.
std::int64_t FeatureNetwork::width() {
  Image image{.width = side, .height = side, .pixels = Pixels(3 * side * side)};
  std::iota(image.pixels.begin(), image.pixels.end(), std::uint8_t{0});
  return features(std::span(&image, 1)).size(1);
}

}  // namespace millrace
