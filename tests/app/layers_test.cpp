#include "bench/layers.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>

#include "millrace/models/presets.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/models/unet_cost.h"
#include "millrace/nn/layers.h"

namespace millrace {
namespace {

struct Size {
  std::int64_t batch, height, width, tokens;
};

std::map<LayerShape, int> layers_of_unet(const UNet2DConditionConfig& config, const Size& size) {
  UNet2DConditionModel unet(config);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : unet->parameters()) parameter.fill_(0.01);
  }
  nn::place(*unet, torch::kCPU, torch::kFloat64);
  const auto latents = torch::zeros({size.batch, config.in_channels, size.height, size.width}, torch::kFloat64);
  const auto text = torch::zeros({size.batch, size.tokens, config.cross_attention_dim.front()}, torch::kFloat64);
  return layers_of([&] { unet(latents, torch::zeros({size.batch}, torch::kInt64), text); });
}

// Products with as few rows as there are samples are those of the timestep's embedding, which unet_forward_flops leaves
// out.
TEST(Layers, OfAUNetAddUpToItsFlops) {
  const auto config = UNet2DConditionConfig::from_json(preset_configs(Preset::tiny).unet);
  for (const Size& size : {Size{2, 8, 8, 77}, Size{3, 12, 20, 50}}) {
    double flops = 0;
    for (const auto& [shape, calls] : layers_of_unet(config, size))
      if (shape.kind != LayerKind::matrix_product || shape.input[0] != size.batch) flops += calls * flops_of(shape);
    const double expected =
        static_cast<double>(size.batch) * unet_forward_flops(config, size.height, size.width, size.tokens);
    EXPECT_NEAR(flops, expected, 0.01 * expected);
  }
}

TEST(Layers, OfAUNetAreAsManyAsItsModules) {
  const auto config = UNet2DConditionConfig::from_json(preset_configs(Preset::tiny).unet);
  UNet2DConditionModel unet(config);
  std::map<LayerKind, int> modules, calls;
  for (const auto& module : unet->modules()) {
    if (module->as<nn::Conv2dImpl>()) ++modules[LayerKind::convolution];
    if (module->as<nn::LinearImpl>() || module->as<TokenProjectionImpl>()) ++modules[LayerKind::matrix_product];
    if (module->as<AttentionImpl>()) ++modules[LayerKind::attention];
  }
  int without_input_gradient = 0;
  for (const auto& [shape, count] : layers_of_unet(config, {2, 8, 8, 77})) {
    calls[shape.kind] += count;
    if (!shape.wants_input_gradient) without_input_gradient += count;
  }
  EXPECT_EQ(calls, modules);
  // The first convolution, the first layer of the timestep, and the keys and values of the text: of half the
  // attentions.
  EXPECT_EQ(without_input_gradient, 1 + 1 + modules[LayerKind::attention]);
}

// The numbers of a convolution counted by hand.
TEST(Layers, KnowTheirFlops) {
  const LayerShape convolution{LayerKind::convolution, {2, 3, 8, 6}, {5, 3, 3, 3}, true, 2, 1};
  EXPECT_EQ(flops_of(convolution), 2. * (5 * 3 * 3 * 3) * (2 * 4 * 3));
  EXPECT_EQ(name_of(convolution), "3x3 /2 3 -> 5, 8x6");
  const LayerShape product{LayerKind::matrix_product, {7, 4}, {6, 4}};
  EXPECT_EQ(flops_of(product), 2. * 7 * 4 * 6);
  EXPECT_EQ(name_of(product), "7 x 4 -> 6");
  const LayerShape of_text{.kind = LayerKind::matrix_product,
                           .input = {7, 4},
                           .second = {6, 4},
                           .with_bias = true,
                           .wants_input_gradient = false};
  EXPECT_EQ(name_of(of_text), "7 x 4 -> 6 + bias from input");
  const LayerShape attention{LayerKind::attention, {2, 3, 16, 8}, {2, 3, 77, 8}};
  EXPECT_EQ(flops_of(attention), 2. * (2 * 3) * (16 * 77 * 8 + 16 * 77 * 8));
  EXPECT_EQ(name_of(attention), "3 heads of 8, 16 x 77");
}

TEST(Layers, HaveTheGradientsThatTrainingWants) {
  using enum LayerPass;
  LayerShape shape{LayerKind::matrix_product, {7, 4}, {6, 4}};
  EXPECT_EQ(passes_of(shape), (std::vector{forward, input_gradient, weight_gradient}));
  shape.wants_input_gradient = false;
  EXPECT_EQ(passes_of(shape), (std::vector{forward, weight_gradient}));
  shape.kind = LayerKind::attention;
  EXPECT_EQ(passes_of(shape), (std::vector{forward, gradients}));
}

// Of two layers the one that takes more of a step stands first.
TEST(Layers, AreSortedByTheirShareOfAStep) {
  const LayerShape convolution{LayerKind::convolution, {1, 4, 8, 8}, {4, 4, 3, 3}, true, 1, 1};
  const LayerShape attention{LayerKind::attention, {1, 2, 16, 8}, {1, 2, 16, 8}};
  LayerTable table{.own = Layout::channels_last, .rows = {}};
  table.rows.push_back({attention, LayerPass::forward, 4, {{2, 2, 2}}});  // 8 ms a step
  table.rows.push_back(
      {convolution, LayerPass::forward, 3, {{9, 9, 9}, {4, 3, 5}}});  // 12 ms, or 27 in the other layout
  const auto lines = to_json(table);
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0]["layout"], "NCHW");
  EXPECT_FALSE(lines[0].contains("share"));
  EXPECT_EQ(lines[1]["layout"], "channels-last");
  EXPECT_DOUBLE_EQ(lines[1]["share"], 12. / 20);
  EXPECT_DOUBLE_EQ(lines[1]["median"], 4);
  EXPECT_DOUBLE_EQ(lines[1]["tflops"], 2. * 4 * 4 * 9 * 64 / 4e-3 / 1e12);
  EXPECT_EQ(lines[2]["kind"], "attention");
  EXPECT_DOUBLE_EQ(lines[2]["share"], 8. / 20);
  const auto text = to_text(table);
  EXPECT_NE(text.find("channels-last *"), std::string::npos) << text;
  EXPECT_LT(text.find("convolution"), text.find("attention")) << text;
}

}  // namespace
}  // namespace millrace
