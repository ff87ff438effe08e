#include <gmock/gmock.h>
#include <torch/utils.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/models/unet_2d_condition.h"
#include "models/golden_network.h"
#include "test_data.h"

namespace millrace {
namespace {

using golden::Json;
using golden::Shape;

struct Case {
  explicit Case(const std::string& name, torch::Device device = torch::kCPU, bool channels_last = false)
      : golden(golden::load("unet_" + name)), unet(UNet2DConditionConfig::from_json(golden["config"])) {
    golden::fill_weights(*unet);
    nn::place(*unet, device, torch::kFloat32, channels_last);
    sample = golden::unit("sample", golden["sample"].get<Shape>()).to(device);
    if (channels_last) sample = sample.contiguous(torch::MemoryFormat::ChannelsLast);
    timestep = torch::tensor(golden["timestep"].get<std::vector<double>>(), torch::kDouble).to(device);
    context = golden::unit("encoder_hidden_states", golden["context"].get<Shape>()).to(device);
  }
  torch::Tensor run() { return unet(sample, timestep, context); }
  torch::Tensor loss(const torch::Tensor& output) {
    return torch::mse_loss(output, golden::unit("target", output.sizes().vec()).to(output.device()));
  }

  Json golden;
  UNet2DConditionModel unet;
  torch::Tensor sample, timestep, context;
};

class UNetGolden : public golden::OnDevices {};

TEST_P(UNetGolden, OutputLossAndGradientsAreThoseOfDiffusers) {
  Case c(name(), device());
  const auto output = c.run();
  EXPECT_LT(golden::relative_error(output, c.golden["output"]), output_tolerance());
  const auto loss = c.loss(output);
  EXPECT_NEAR(loss.item<double>(), c.golden["loss"].get<double>(), output_tolerance());
  loss.backward();
  golden::expect_gradients(*c.unet, c.golden["gradients"], gradient_tolerance());
}

TEST_P(UNetGolden, CheckpointingChangesNothing) {
  Case c(name(), device());
  c.unet->set_gradient_checkpointing(true);
  const auto output = c.run();
  EXPECT_LT(golden::relative_error(output, c.golden["output"]), output_tolerance());
  c.loss(output).backward();
  golden::expect_gradients(*c.unet, c.golden["gradients"], gradient_tolerance());
}

TEST_P(UNetGolden, ChannelsLastChangesNothing) {
  Case c(name(), device(), /*channels_last=*/true);
  const auto output = c.run();
  EXPECT_LT(golden::relative_error(output, c.golden["output"]), output_tolerance());
  c.loss(output).backward();
  golden::expect_gradients(*c.unet, c.golden["gradients"], gradient_tolerance());
}

MILLRACE_GOLDENS_ON_DEVICES(UNetGolden, "sd1_like", "sd2_like", "odd", "plain", "no_mid");

TEST(UNet, OneTimestepServesTheWholeBatch) {
  Case c("sd1_like");
  const auto three = c.unet(c.sample, torch::full({2}, 17), c.context);
  EXPECT_TRUE(torch::equal(three, c.unet(c.sample, torch::tensor(17), c.context)));
  EXPECT_TRUE(torch::equal(three, c.unet(c.sample, torch::tensor({17.0}), c.context)));
}

class UNetOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(UNetOnDevice);

TEST_P(UNetOnDevice, CheckpointedDropoutDrawsTheSameNumbersAgain) {
  Case c("plain", device());
  auto config = c.golden["config"];
  config["dropout"] = 0.5;
  UNet2DConditionModel unet(UNet2DConditionConfig::from_json(config));
  golden::fill_weights(*unet);
  nn::place(*unet, device(), torch::kFloat32);
  const auto gradient = [&](bool checkpointing) {
    unet->set_gradient_checkpointing(checkpointing);
    unet->zero_grad();
    torch::manual_seed(5);
    c.loss(unet(c.sample, c.timestep, c.context)).backward();
    return unet->named_parameters()["conv_in.weight"].grad().clone();
  };
  const auto plain = gradient(false);
  // cuDNN may take another kernel the second time.
  EXPECT_TRUE(torch::allclose(plain, gradient(true), 1e-4, is_cuda() ? 1e-5 : 1e-6));
  torch::manual_seed(6);
  unet->zero_grad();
  c.loss(unet(c.sample, c.timestep, c.context)).backward();
  EXPECT_FALSE(torch::allclose(plain, unet->named_parameters()["conv_in.weight"].grad(), 1e-4, 1e-6));
}

// In the layout that a run has on the device.
TEST_P(UNetOnDevice, RunsInBfloat16) {
  Case c("sd2_like", device());
  nn::place(*c.unet, device(), torch::kBFloat16);
  c.sample = c.sample.to(torch::kBFloat16);
  c.context = c.context.to(torch::kBFloat16);
  EXPECT_LT(golden::relative_error(c.run(), c.golden["output"]), 0.05);
}

// Names and shapes of the published models, as diffusers lists them.
TEST(UNet, HasTheStateDictOfStableDiffusion) {
  for (const std::string version : {"sd1", "sd2"}) {
    std::ifstream file(test::data_dir() / "presets" / (std::string(version) + "_shapes.json"));
    const Json expected = Json::parse(file)["unet"];
    Json config = {{"sample_size", 64}};
    if (version == "sd1") config.update({{"cross_attention_dim", 768}});
    if (version == "sd2") {
      config.update(
          {{"cross_attention_dim", 1024}, {"attention_head_dim", {5, 10, 20, 20}}, {"use_linear_projection", true}});
    }
    UNet2DConditionModel unet(UNet2DConditionConfig::from_json(config));
    Json actual;
    for (const auto& item : unet->named_parameters()) actual[item.key()] = item.value().sizes().vec();
    EXPECT_EQ(actual, expected);
  }
}

// The order in which a forward pass asks for them.
struct Listener : nn::ParameterSource {
  explicit Listener(torch::nn::Module& model) {
    for (const auto& item : model.named_parameters()) names[item.value().unsafeGetTensorImpl()] = item.key();
  }
  void provide(const torch::Tensor& parameter) override { asked.push_back(names.at(parameter.unsafeGetTensorImpl())); }
  bool all_stay() const override { return false; }

  std::map<const void*, std::string> names;
  std::vector<std::string> asked;
};

TEST(UNet, ExecutionOrderIsThatOfForward) {
  for (const std::string name : {"sd1_like", "sd2_like"}) {
    Case c(name);
    Listener listener(*c.unet);
    nn::set_parameter_source(*c.unet, &listener);
    c.run();
    EXPECT_EQ(execution_order(*c.unet), listener.asked) << name;
    EXPECT_EQ(listener.asked.size(), c.unet->parameters().size());
  }
}

// ... and backward asks for each layer's weight, in the reverse order.
TEST(UNet, BackwardAsksForTheWeightsFromTheLastToTheFirst) {
  Case c("sd2_like");
  Listener listener(*c.unet);
  nn::set_parameter_source(*c.unet, &listener);
  const auto output = c.run();
  std::vector<std::string> weights;
  for (const auto& parameter : listener.asked)
    if (parameter.ends_with(".weight")) weights.push_back(parameter);
  std::ranges::reverse(weights);
  listener.asked.clear();
  output.sum().backward();
  EXPECT_EQ(listener.asked, weights);
}

TEST(UNetConfig, DefaultsAreThoseOfDiffusers) {
  const auto c = UNet2DConditionConfig::from_json(Json::object());
  EXPECT_EQ(c.block_out_channels, (Shape{320, 640, 1280, 1280}));
  EXPECT_EQ(c.heads, (Shape{8, 8, 8, 8}));
  EXPECT_EQ(c.down_cross_attention, (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(c.up_transformer_layers, (std::vector<Shape>(4, Shape(3, 1))));
  EXPECT_EQ(c.time_channels(), 1280);
  EXPECT_FALSE(c.sample_size);
}

TEST(UNetConfig, ComesBackAsItWasRead) {
  const Json json = {
      {"_class_name", "UNet2DConditionModel"}, {"attention_head_dim", {5, 10, 20, 20}}, {"dropout", nullptr}};
  EXPECT_EQ(UNet2DConditionConfig::from_json(json).to_json(), json);
}

// Diffusers reads null as false, and act_fn in any case of letters.
TEST(UNetConfig, WordsAreReadAsInPython) {
  EXPECT_TRUE(UNet2DConditionConfig::from_json(Json::object()).flip_sin_to_cos);
  EXPECT_FALSE(UNet2DConditionConfig::from_json({{"flip_sin_to_cos", nullptr}}).flip_sin_to_cos);
  EXPECT_EQ(UNet2DConditionConfig::from_json({{"act_fn", "SiLU"}}).act_fn, nn::Activation::silu);
}

TEST(UNetConfig, LevelsWithoutAttentionMayHaveAnyNumberOfHeads) {
  const Json json = {{"attention_head_dim", {8, 8, 8, 1281}}, {"mid_block_type", nullptr}};
  EXPECT_EQ(UNet2DConditionConfig::from_json(json).heads.back(), 1281);
}

// As StableDiffusionPipeline takes them.
TEST(UNetConfig, ASizeBelow64OfAnOldFolderMeans64) {
  const auto size = [](const Json& version, const Json& sample_size) {
    return UNet2DConditionConfig::from_json({{"_diffusers_version", version}, {"sample_size", sample_size}})
        .sample_size.value();
  };
  for (const char* version : {"0.4", "0.6.0", "0.7.0.dev0", "0.8.0", "0.8.1"}) {
    EXPECT_EQ(size(version, 32), Shape({64, 64})) << version;
    EXPECT_EQ(size(version, 96), Shape({96, 96})) << version;
    EXPECT_EQ(size(version, {32, 48}), Shape({32, 48})) << version;
  }
  for (const char* version : {"0.9.0.dev0", "0.9.0", "0.10.2", "0.42.1", "1.0.0", "0.", "0.x", ""})
    EXPECT_EQ(size(version, 32), Shape({32, 32})) << version;
  EXPECT_EQ(size("0.8." + std::string(1 << 20, 'x'), 32), Shape({64, 64}));
  EXPECT_EQ(UNet2DConditionConfig::from_json({{"sample_size", 32}}).sample_size.value(), Shape({32, 32}));
}

TEST(UNetConfig, RefusesByFileAndKey) {
  const std::vector<Json> refused = {
      {{"num_attention_heads", 8}},
      {{"dual_cross_attention", true}},
      {{"class_embed_type", "timestep"}},
      {{"num_class_embeds", 10}},
      {{"addition_embed_type", "text_time"}},
      {{"encoder_hid_dim", 768}},
      {{"time_cond_proj_dim", 256}},
      {{"time_embedding_type", "fourier"}},
      {{"attention_type", "gated"}},
      {{"resnet_time_scale_shift", "spatial"}},
      {{"mid_block_type", "UNetMidBlock2DSimpleCrossAttn"}},
      {{"down_block_types", {"AttnDownBlock2D", "DownBlock2D", "DownBlock2D", "DownBlock2D"}}},
      {{"up_block_types", {"UpBlock2D"}}},
      {{"attention_head_dim", {5, 10}}},
      {{"attention_head_dim", "eight"}},
      {{"attention_head_dim", 321}},
      {{"attention_head_dim", {8, 8, 8, 1281}}},  // of the mid block
      {{"_class_name", "UNet2DModel"}},
      {{"norm_num_groups", 33}},
      {{"norm_num_groups", nullptr}},
      {{"act_fn", "tanh"}},
      {{"layers_per_block", 0}},
      {{"sample_size", "64"}},
      {{"transformer_layers_per_block", {1, 2}}},
      {{"reverse_transformer_layers_per_block", {{1}, {1}, {1}, {1}}}},
      {{"transformer_layers_per_block", {{1, "one"}, {1, 1}, {1, 1}, {1, 1}}}},
      {{"sample_size", {64}}},
      // More than any network has.
      {{"layers_per_block", 1'000'000'000'000}},
      {{"layers_per_block", {2, 2, 2, 1001}}},
      {{"layers_per_block", 18446744073709551615U}},
      {{"transformer_layers_per_block", 50'000'000}},
      {{"transformer_layers_per_block", {{1, 1001}, {1, 1}, {1, 1}, {1, 1}}}},
      {{"transformer_layers_per_block", {1000, 1000, 1000, 1000}}, {"layers_per_block", 1000}},
      {{"block_out_channels", {320, 640, 1280, 1'280'000}}},
      {{"block_out_channels", std::vector<int>(17, 320)}},
      {{"cross_attention_dim", 100'000}},
      {{"attention_head_dim", 100'000}},
      {{"in_channels", 100'000}},
      {{"conv_in_kernel", 65}},
      {{"downsample_padding", 65}},
      {{"sample_size", 4097}},
  };
  for (const Json& json : refused) {
    try {
      UNet2DConditionConfig::from_json(json, "folder/unet/config.json");
      ADD_FAILURE() << json;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_THAT(error.what(), testing::StartsWith("folder/unet/config.json: " + json.rbegin().key()));
    }
  }
}

}  // namespace
}  // namespace millrace
