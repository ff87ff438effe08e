#include "millrace/models/unet_cost.h"

#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "live_memory.h"
#include "millrace/models/encoder_cost.h"
#include "millrace/models/presets.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/nn/device.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/layers.h"

namespace millrace {
namespace {

// As in training: a parameter's gradient leaves as soon as it is there.
struct DropGradient final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& parameter) override { parameter.mutable_grad() = torch::Tensor(); }
};

UNet2DConditionModel make_unet_of(const UNet2DConditionConfig& config, const UNetPass& pass) {
  UNet2DConditionModel unet(config);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : unet->parameters()) parameter.fill_(0.01);
  nn::place(*unet, pass.device, pass.dtype, pass.channels_last);
  unet->set_gradient_checkpointing(pass.gradient_checkpointing);
  for (const auto& parameter : unet->parameters())
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<DropGradient>());
  return unet;
}

std::int64_t measured_bytes(const UNet2DConditionConfig& config, const UNetPass& pass) {
  at::set_num_threads(1);  // kernels need memory for each
  auto unet = make_unet_of(config, pass);
  const test::LiveMemory memory;
  const auto format = pass.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  const auto sample =
      torch::zeros({pass.batch, config.in_channels, pass.height, pass.width}, pass.dtype).contiguous(format);
  const auto context = torch::zeros({pass.batch, pass.tokens, config.cross_attention_dim.front()}, pass.dtype);
  unet(sample, torch::tensor(500), context).to(torch::kFloat32).square().mean().backward();
  return memory.peak();
}

constexpr double mib = 1 << 20;

struct Case {
  std::string name;
  nlohmann::json changes;  // of the preset
  Preset preset;
  std::int64_t batch, height, width;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

class UNetMemory : public testing::TestWithParam<Case> {};

void expect_what_tensors_hold(const Case& c, torch::Dtype dtype) {
  if (std::getenv("ONEDNN_MAX_CPU_ISA")) GTEST_SKIP() << "kernels of old processors need more for themselves";
  auto json = preset_configs(c.preset).unet;
  json.update(c.changes);
  const auto config = UNet2DConditionConfig::from_json(json);
  for (const bool checkpointing : {false, true}) {
    const UNetPass pass{c.batch, c.height, c.width, dtype, checkpointing};
    nn::use_fused_kernels(nn::FusedKernels::nowhere);
    const auto measured = static_cast<double>(measured_bytes(config, pass));
    nn::use_fused_kernels(nn::FusedKernels::by_device);
    const auto predicted = static_cast<double>(unet_activation_bytes(config, pass));
    // Kernels need some for themselves, small statistics are not counted.
    EXPECT_NEAR(predicted / mib, measured / mib, 0.01 * measured / mib + 1)
        << (checkpointing ? "with" : "without") << " checkpointing";
  }
}

TEST_P(UNetMemory, IsWhatTensorsOfAPassHold) {
  expect_what_tensors_hold(GetParam(), torch::kFloat32);
}

TEST_P(UNetMemory, IsWhatTensorsOfAPassInBfloat16Hold) {
  if (!at::cpu::is_avx512_vnni_supported())
    GTEST_SKIP() << "without AVX512-VNNI LibTorch lays bfloat16 images out as columns, which nobody trains with";
  expect_what_tensors_hold(GetParam(), torch::kBFloat16);
}

const nlohmann::json sd1_like = {{"block_out_channels", {32, 64, 128, 128}},
                                 {"attention_head_dim", 4},
                                 {"cross_attention_dim", 96},
                                 {"norm_num_groups", 8}};
const nlohmann::json sd2_like = {
    {"block_out_channels", {64, 128, 256, 256}}, {"attention_head_dim", {1, 2, 4, 4}}, {"cross_attention_dim", 128}};
const nlohmann::json odd = {{"block_out_channels", {48, 96, 96, 192}},
                            {"attention_head_dim", {2, 3, 3, 5}},
                            {"cross_attention_dim", 72},
                            {"norm_num_groups", 16},
                            {"layers_per_block", {1, 3, 2, 2}},
                            {"transformer_layers_per_block", {1, 2, 3, 1}},
                            {"only_cross_attention", {true, false, false, true}},
                            {"resnet_time_scale_shift", "scale_shift"}};
const nlohmann::json plain = {{"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"}},
                              {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}},
                              {"mid_block_type", nullptr},
                              {"downsample_padding", 0},
                              {"dropout", 0.1}};

INSTANTIATE_TEST_SUITE_P(, UNetMemory,
                         testing::Values(Case{"tiny", nlohmann::json::object(), Preset::tiny, 2, 32, 32},
                                         Case{"sd1_like", sd1_like, Preset::sd1, 1, 24, 48},
                                         Case{"sd2_like", sd2_like, Preset::sd2, 1, 25, 39},
                                         Case{"odd", odd, Preset::sd2, 1, 33, 31},
                                         Case{"plain", plain, Preset::tiny, 4, 32, 32}),
                         [](const auto& info) { return info.param.name; });

// What GPUs run, as far as a CPU can, the kernels' twins on channels-last maps; and what CPUs run.
TEST_P(UNetMemory, IsLessWithFusedKernels) {
  if (std::getenv("ONEDNN_MAX_CPU_ISA")) GTEST_SKIP() << "kernels of old processors need more for themselves";
  const auto& c = GetParam();
  auto json = preset_configs(c.preset).unet;
  json.update(c.changes);
  const auto config = UNet2DConditionConfig::from_json(json);
  for (const bool checkpointing : {false, true}) {
    UNetPass pass{c.batch, c.height, c.width, torch::kFloat32, checkpointing};
    pass.channels_last = pass.fused_kernels = true;
    for (const auto kernels : {nn::FusedKernels::everywhere, nn::FusedKernels::by_device}) {
      pass.joined_projections = kernels == nn::FusedKernels::everywhere;
      const auto predicted = static_cast<double>(unet_activation_bytes(config, pass));
      nn::use_fused_kernels(kernels);
      const auto measured = static_cast<double>(measured_bytes(config, pass));
      nn::use_fused_kernels(nn::FusedKernels::by_device);
      EXPECT_NEAR(predicted / mib, measured / mib, 0.01 * measured / mib + 1)
          << (kernels == nn::FusedKernels::everywhere ? "twins" : "the CPU's own")
          << (checkpointing ? " with" : " without") << " checkpointing";
    }
  }
}

// With channels that kernels of CPUs take and others that are left to LibTorch.
TEST(UNetMemoryOfUnevenChannels, IsWhatTensorsOfAPassHold) {
  if (std::getenv("ONEDNN_MAX_CPU_ISA")) GTEST_SKIP() << "kernels of old processors need more for themselves";
  auto json = preset_configs(Preset::sd2).unet;
  json.update({{"block_out_channels", {36, 60, 60, 96}},
               {"attention_head_dim", {3, 5, 5, 4}},
               {"cross_attention_dim", 72},
               {"norm_num_groups", 4}});
  const auto config = UNet2DConditionConfig::from_json(json);
  UNetPass pass{2, 24, 40};
  pass.channels_last = pass.fused_kernels = true;
  const auto predicted = static_cast<double>(unet_activation_bytes(config, pass));
  const auto measured = static_cast<double>(measured_bytes(config, pass));
  EXPECT_NEAR(predicted / mib, measured / mib, 0.01 * measured / mib + 1);
}

// Stable Diffusion 2 at 256 pixels: a sample takes as much as the next, and checkpointing saves most of it.
TEST(UNetMemoryOfStableDiffusion, GrowsWithTheBatch) {
  const auto config = UNet2DConditionConfig::from_json(preset_configs(Preset::sd2).unet);
  const auto bytes = [&](std::int64_t batch, bool checkpointing) {
    return static_cast<double>(unet_activation_bytes(config, {batch, 32, 32, torch::kBFloat16, checkpointing}));
  };
  EXPECT_NEAR(bytes(64, false) / bytes(32, false), 2, 0.01);
  EXPECT_LT(bytes(32, true), bytes(32, false) / 2);
}

// Against torch.utils.flop_counter on diffusers' and transformers' modules, in 10^9. The timestep's embedding is left
// out.
TEST(Flops, AreThoseOfTorchsCounter) {
  struct Counted {
    Preset preset;
    std::int64_t pixels, latents;
    double unet, vae, text;
  };
  for (const auto& c :
       {Counted{Preset::sd2, 256, 32, 181.09, 272.72, 45.127}, Counted{Preset::sd2, 512, 64, 804.26, 1116.66, 45.127},
        Counted{Preset::sd1, 256, 32, 180.11, 272.72, 13.299},
        Counted{Preset::sd1, 512, 64, 803.27, 1116.66, 13.299}}) {
    const auto configs = preset_configs(c.preset);
    const auto unet = UNet2DConditionConfig::from_json(configs.unet);
    EXPECT_NEAR(unet_forward_flops(unet, c.latents, c.latents) / 1e9, c.unet, 1e-3 * c.unet);
    const auto vae = AutoencoderKLConfig::from_json(configs.vae);
    EXPECT_NEAR(vae_encode_flops(vae, c.pixels, c.pixels) / 1e9, c.vae, 1e-3 * c.vae);
    const auto text = CLIPTextConfig::from_json(configs.text_encoder);
    EXPECT_NEAR(text_encode_flops(text, 77) / 1e9, c.text, 1e-3 * c.text);
  }
}

}  // namespace
}  // namespace millrace
