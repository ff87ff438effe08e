// With channels-last weights, feature maps stay channels-last from the first convolution to the last gradient: a tensor
// in the other layout on the way is a hidden copy of it, and what follows may go on in that layout.
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/autograd.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/nn/fused.h"
#include "models/golden_network.h"

namespace millrace {
namespace {

// Latents and images come and go as they are stored; copies of so few channels are cheap.
constexpr std::int64_t channels_of_ends = 8;

// Strides in the order of NHWC, also of some of the channels of a larger map.
bool is_channels_last(const torch::Tensor& x) {
  return x.is_contiguous(torch::MemoryFormat::ChannelsLast) ||
         x.suggest_memory_format() == torch::MemoryFormat::ChannelsLast;
}
bool is_feature_map(const torch::Tensor& x) {
  return x.defined() && x.dim() == 4 && x.size(1) > channels_of_ends && x.size(2) * x.size(3) > 1;
}

struct WatchedLayouts {
  std::set<std::vector<std::int64_t>> shapes_of_weights;  // and of their gradients
  std::set<std::string> wrong, names;
  std::map<std::string, int> own;  // calls of kernels of our own
  int maps = 0, depth = 0;
};

// Operators that the calling thread's networks and gradients call (not those inside them) with a feature map in another
// layout, as long as it lives. Views read nothing.
class LayoutWatch {
 public:
  explicit LayoutWatch(const torch::nn::Module& network)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&begin, &end).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {
    state_ = {};
    for (const auto& parameter : network.parameters()) state_.shapes_of_weights.insert(parameter.sizes().vec());
  }
  LayoutWatch(const LayoutWatch&) = delete;
  LayoutWatch& operator=(const LayoutWatch&) = delete;
  ~LayoutWatch() { at::removeCallback(handle_); }

  const std::set<std::string>& wrong() const { return state_.wrong; }
  int maps() const { return state_.maps; }  // looked at
  bool saw(const std::string& name) const { return state_.names.contains(name); }
  int calls_of_own(const std::string& name) const { return state_.own["millrace::" + name]; }

 private:
  static bool is_view(std::string_view name) {
    static const std::set<std::string_view> views = {
        "aten::view",       "aten::reshape",   "aten::permute", "aten::transpose", "aten::flatten",
        "aten::as_strided", "aten::unflatten", "aten::narrow",  "aten::slice",     "aten::detach",
        "aten::empty_like", "aten::expand",    "aten::alias",   "detach"};
    return views.contains(name);
  }
  // Others are scopes around them: of our own, and of the engine of gradients.
  static bool is_operator(const at::RecordFunction& function) {
    return std::string_view(function.name()).starts_with("aten::");
  }
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string_view(function.name()).starts_with("millrace::")) ++state_.own[function.name()];
    if (!is_operator(function) || state_.depth++ > 0 || is_view(function.name())) return nullptr;
    for (const auto& input : function.inputs()) {
      if (input.isTensor()) look_at(input.toTensor(), function.name());
      if (input.isTensorList())
        for (const torch::Tensor& tensor : input.toTensorVector()) look_at(tensor, function.name());
    }
    return nullptr;
  }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    if (is_operator(function)) --state_.depth;
  }
  static void look_at(const torch::Tensor& x, const char* name) {
    if (!is_feature_map(x) || state_.shapes_of_weights.contains(x.sizes().vec())) return;
    ++state_.maps;
    state_.names.insert(name);
    if (!is_channels_last(x))
      state_.wrong.insert(fmt::format("{} reads {} with strides {}", name, c10::str(x.sizes()), c10::str(x.strides())));
  }

  static inline WatchedLayouts state_;
  at::CallbackHandle handle_;
};

// Forward and backward.
template <class Forward>
void expect_channels_last(const LayoutWatch& watch, const torch::nn::Module& network, Forward&& forward) {
  // Not by Tensor::backward, which would be an operator around all others.
  torch::autograd::backward({forward().to(torch::kFloat32).square().mean()}, {});
  EXPECT_TRUE(watch.wrong().empty()) << testing::PrintToString(watch.wrong());
  int convolutions = 0;
  for (const auto& module : network.modules()) convolutions += module->as<nn::Conv2dImpl>() != nullptr;
  EXPECT_GT(watch.maps(), convolutions);  // a VAE has as many in the half that is not asked for
  EXPECT_TRUE(watch.saw("aten::convolution_backward"));
}

// The reference's network on its inputs.
torch::Tensor run_unet(UNet2DConditionModel& unet, const golden::Json& golden, torch::Dtype dtype) {
  const auto sample = golden::unit("sample", golden["sample"].get<golden::Shape>()).to(dtype);
  const auto context = golden::unit("encoder_hidden_states", golden["context"].get<golden::Shape>()).to(dtype);
  return unet(sample, torch::full({sample.size(0)}, 500), context);
}
torch::Tensor run_encoder(AutoencoderKL& vae, const golden::Json& golden, torch::Dtype dtype) {
  return vae->encode(golden::noise("image", golden["image"].get<golden::Shape>()).to(dtype));
}
torch::Tensor run_decoder(AutoencoderKL& vae, const golden::Json& golden, torch::Dtype dtype) {
  return vae->decode(golden::unit("latent", golden["latent"].get<golden::Shape>()).to(dtype));
}

constexpr const char* unets[] = {"sd1_like", "sd2_like", "odd", "plain"};

// In bfloat16 convolutions are LibTorch's, as on a GPU.
class Layout : public testing::TestWithParam<nn::FusedKernels> {
 protected:
  void SetUp() override { nn::use_fused_kernels(GetParam()); }
  void TearDown() override { nn::use_fused_kernels(nn::FusedKernels::by_device); }

  template <class Forward>
  static void expect_stays(torch::nn::Module& network, Forward&& forward) {
    golden::fill_weights(network);
    nn::place(network, torch::kCPU, torch::kBFloat16, /*channels_last=*/true);
    expect_channels_last(LayoutWatch(network), network, forward);
  }
};

TEST_P(Layout, OfAUNetStaysChannelsLast) {
  for (const std::string name : unets) {
    const auto golden = golden::load("unet_" + name);
    UNet2DConditionModel unet(UNet2DConditionConfig::from_json(golden["config"]));
    SCOPED_TRACE(name);
    expect_stays(*unet, [&] { return run_unet(unet, golden, torch::kBFloat16); });
  }
}

TEST_P(Layout, OfAnEncoderStaysChannelsLast) {
  const auto golden = golden::load("vae_sd_like");
  AutoencoderKL vae(AutoencoderKLConfig::from_json(golden["config"]));
  expect_stays(*vae, [&] { return run_encoder(vae, golden, torch::kBFloat16); });
}

TEST_P(Layout, OfADecoderStaysChannelsLast) {
  const auto golden = golden::load("vae_sd_like");
  AutoencoderKL vae(AutoencoderKLConfig::from_json(golden["config"]));
  expect_stays(*vae, [&] { return run_decoder(vae, golden, torch::kBFloat16); });
}

INSTANTIATE_TEST_SUITE_P(, Layout, testing::Values(nn::FusedKernels::nowhere, nn::FusedKernels::everywhere),
                         [](const auto& info) {
                           return info.param == nn::FusedKernels::nowhere ? "LibTorch" : "Fused";
                         });

// In float32 on CPUs, where nobody asks for a layout: each group norm whose name begins with `part` is one of our own,
// forward and backward. One that met another layout would be LibTorch's without a word.
template <class Forward>
void expect_own_group_norms(torch::nn::Module& network, const std::string& part, Forward&& forward) {
  golden::fill_weights(network);
  nn::place(network, torch::kCPU, torch::kFloat32);
  int norms = 0;
  for (const auto& item : network.named_modules())
    norms += item.key().starts_with(part) && item.value()->as<nn::GroupNormImpl>() != nullptr;
  const LayoutWatch watch(network);
  expect_channels_last(watch, network, forward);
  EXPECT_GT(norms, 0);
  EXPECT_EQ(watch.calls_of_own("group_norm_silu"), norms);
  EXPECT_EQ(watch.calls_of_own("group_norm_silu_backward"), norms);
}

TEST(LayoutOnCpus, OfAUNetIsThatOfItsOwnGroupNorms) {
  for (const std::string name : unets) {
    const auto golden = golden::load("unet_" + name);
    UNet2DConditionModel unet(UNet2DConditionConfig::from_json(golden["config"]));
    SCOPED_TRACE(name);
    expect_own_group_norms(*unet, "", [&] { return run_unet(unet, golden, torch::kFloat32); });
  }
}

TEST(LayoutOnCpus, OfAVaeIsThatOfItsOwnGroupNorms) {
  const auto golden = golden::load("vae_sd_like");
  AutoencoderKL vae(AutoencoderKLConfig::from_json(golden["config"]));
  expect_own_group_norms(*vae, "encoder.", [&] { return run_encoder(vae, golden, torch::kFloat32); });
  expect_own_group_norms(*vae, "decoder.", [&] { return run_decoder(vae, golden, torch::kFloat32); });
}

}  // namespace
}  // namespace millrace
