#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>

#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/philox.h"
#include "millrace/core/process_name.h"
#include "millrace/io/json.h"
#include "millrace/io/safetensors_writer.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/presets.h"
#include "millrace/nn/weights.h"
#include "test_data.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::TempDir;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path published = test::data_dir() / "presets";

void copy_tokenizer(const fs::path& folder) {
  fs::copy(test::data_dir() / "folder/pipeline/tokenizer", folder);
}

// Networks whose memory is never touched, so that the big ones cost nothing.
struct Networks {
  explicit Networks(Preset preset)
      : unet(UNet2DConditionConfig::from_json(preset_configs(preset).unet)),
        vae(AutoencoderKLConfig::from_json(preset_configs(preset).vae)),
        text_encoder(CLIPTextConfig::from_json(preset_configs(preset).text_encoder)) {}
  UNet2DConditionModel unet;
  AutoencoderKL vae;
  CLIPTextModel text_encoder;
};

void expect_published_shapes(Preset preset, const char* file) {
  const json expected = read_json(published / file);
  const Networks networks(preset);
  EXPECT_EQ(json(parameter_shapes(*networks.unet)), expected.at("unet"));
  EXPECT_EQ(json(parameter_shapes(*networks.vae)), expected.at("vae"));
  EXPECT_EQ(json(parameter_shapes(*networks.text_encoder)), expected.at("text_encoder"));
}

TEST(Presets, HaveTheKeysAndShapesOfThePublishedModels) {
  expect_published_shapes(Preset::tiny, "tiny_shapes.json");
  expect_published_shapes(Preset::sd1, "sd1_shapes.json");
  expect_published_shapes(Preset::sd2, "sd2_shapes.json");
  expect_published_shapes(Preset::sd2_v, "sd2_shapes.json");
}

// Size of the weight file of `module`, found by writing its header only.
std::uint64_t file_bytes(const torch::nn::Module& module, DType dtype) {
  const TempDir dir;
  std::vector<TensorSpec> specs;
  std::uint64_t data_bytes = 0;
  for (const auto& [name, shape] : parameter_shapes(module)) {
    specs.push_back({name, dtype, shape});
    data_bytes += try_byte_count(dtype, shape).value();
  }
  const SafetensorsWriter writer(dir / "weights.safetensors", specs);
  return data_bytes + fs::file_size(fs::directory_iterator(dir.path())->path());
}

TEST(Presets, HaveThePublishedFileSizes) {
  const Networks sd1(Preset::sd1), sd2(Preset::sd2);
  EXPECT_EQ(file_bytes(*sd1.unet, DType::f32), 3'438'167'536u);
  EXPECT_EQ(file_bytes(*sd1.unet, DType::f16), 1'719'125'304u);
  EXPECT_EQ(file_bytes(*sd1.vae, DType::f32), 334'643'268u);
  EXPECT_EQ(file_bytes(*sd2.unet, DType::f32), 3'463'726'504u);
  EXPECT_EQ(file_bytes(*sd2.unet, DType::f16), 1'731'904'736u);
  EXPECT_EQ(file_bytes(*sd2.unet, DType::bf16), 1'731'905'416u);
}

TEST(Presets, DifferWhereThePublishedModelsDo) {
  EXPECT_EQ(preset_configs(Preset::sd1).unet.at("attention_head_dim"), 8);
  EXPECT_EQ(preset_configs(Preset::sd2).unet.at("sample_size"), 64);
  EXPECT_EQ(preset_configs(Preset::sd2_v).unet.at("sample_size"), 96);
  EXPECT_EQ(preset_configs(Preset::sd2_v).unet.at("upcast_attention"), true);
  EXPECT_EQ(preset_configs(Preset::sd2).scheduler.at("_class_name"), "PNDMScheduler");
  EXPECT_EQ(preset_configs(Preset::sd2_v).scheduler.at("_class_name"), "DDIMScheduler");
  EXPECT_EQ(preset_configs(Preset::sd2_v).scheduler.at("prediction_type"), "v_prediction");
  EXPECT_EQ(preset_pad_token(Preset::sd1), "<|endoftext|>");
  EXPECT_EQ(preset_pad_token(Preset::sd2), "!");
  EXPECT_EQ(parse_preset("sd2-v"), Preset::sd2_v);
  EXPECT_THROW(parse_preset("sd3"), Error);
}

// The same distributions as diffusers' and transformers' fresh models: constants exactly, the spread of the others
// within the error of an estimate from that many numbers.
void expect_statistics(const torch::nn::Module& module, const json& expected) {
  for (const auto& parameter : module.named_parameters()) {
    const auto found = expected.find(parameter.key());
    if (found == expected.end()) continue;
    const torch::Tensor numbers = parameter.value().detach().to(torch::kFloat64);
    const double spread = numbers.std().item<double>(), reference = found->at(1);
    if (found->at(0) == "constant") {
      EXPECT_TRUE((numbers == reference).all().item<bool>()) << parameter.key();
      continue;
    }
    const double tolerance = 6 * reference / std::sqrt(static_cast<double>(numbers.numel()));
    EXPECT_NEAR(spread, reference, tolerance) << parameter.key();
    EXPECT_NEAR(numbers.mean().item<double>(), 0, tolerance) << parameter.key();
    EXPECT_NEAR(numbers.abs().max().item<double>() / spread, found->at(2).get<double>() / reference, 1.5)
        << parameter.key();
  }
}

TEST(Initialize, HasTheReferencesDistributions) {
  const json expected = read_json(published / "tiny_statistics.json");
  const PresetConfigs configs = preset_configs(Preset::tiny);
  expect_statistics(*make_unet(configs.unet, 1), expected.at("unet"));
  expect_statistics(*make_vae(configs.vae, 2), expected.at("vae"));
  expect_statistics(*make_text_encoder(configs.text_encoder, 3), expected.at("text_encoder"));
}

TEST(Initialize, RulesAreThoseOfTheLayers) {
  const InitRules rules = plan_pytorch_init({{"conv.weight", {8, 4, 3, 3}},
                                             {"conv.bias", {8}},
                                             {"norm.weight", {8}},
                                             {"norm.bias", {8}},
                                             {"q.weight", {8, 16}}});
  EXPECT_EQ(rules.at("conv.weight"), (InitRule{InitRule::Kind::uniform, 1.0 / 6}));
  EXPECT_EQ(rules.at("conv.bias"), (InitRule{InitRule::Kind::uniform, 1.0 / 6}));
  EXPECT_EQ(rules.at("norm.weight"), (InitRule{InitRule::Kind::constant, 1}));
  EXPECT_EQ(rules.at("norm.bias"), (InitRule{InitRule::Kind::constant, 0}));
  EXPECT_EQ(rules.at("q.weight"), (InitRule{InitRule::Kind::uniform, 0.25}));
}

// Whatever goes in, nothing comes out at first; and the residual and attention blocks inside add nothing.
TEST(Initialize, ZeroOutputsLeaveTheStreamAsItIs) {
  auto unet = make_unet(preset_configs(Preset::tiny).unet, 1);
  initialize(*unet, with_zero_outputs(plan_pytorch_init(parameter_shapes(*unet))), 1);
  const auto run = [&] {
    const torch::NoGradGuard no_grad;
    return unet->forward(torch::randn({2, 4, 8, 8}), torch::tensor({3, 900}), torch::randn({2, 77, 64}));
  };
  EXPECT_EQ(run().abs().max().item<float>(), 0);

  const torch::NoGradGuard no_grad;
  const auto parameters = unet->named_parameters();
  parameters["conv_out.weight"].fill_(1);
  const auto before = (torch::manual_seed(5), run());
  EXPECT_GT(before.abs().max().item<float>(), 0);
  for (const auto& parameter : parameters) {  // everything in front of these zeros makes no difference
    const auto& name = parameter.key();
    if (name.find(".conv1.") != name.npos || name.find(".transformer_blocks.") != name.npos) parameter.value().mul_(3);
  }
  EXPECT_TRUE(torch::equal((torch::manual_seed(5), run()), before));
}

TEST(Initialize, DependsOnSeedAndNameOnly) {
  const json config = preset_configs(Preset::tiny).vae;
  const Tensors first = weights_of(*make_vae(config, 1));
  at::set_num_threads(1);
  const Tensors again = weights_of(*make_vae(config, 1)), other = weights_of(*make_vae(config, 2));
  for (const auto& [name, tensor] : first) EXPECT_TRUE(torch::equal(tensor, again.at(name))) << name;
  EXPECT_FALSE(torch::equal(first.at("encoder.conv_in.weight"), other.at("encoder.conv_in.weight")));
}

// Compilers for processors that all have fused multiply-add (aarch64) make one rounding of these two where they may.
TEST(Initialize, ProductAndSumRoundEachSoThatEveryProcessorMakesTheSameBits) {
  const std::string name = "encoder.conv_in.weight";
  const torch::Tensor weight = weights_of(*make_vae(preset_configs(Preset::tiny).vae, 1)).at(name).flatten();
  const double bound = 1 / std::sqrt(27.0);  // three channels of 3 x 3
  const RngKey key{.seed = 1, .sample = hash64(name)};
  ASSERT_GT(weight.numel(), 100);
  for (std::int64_t i = 0; i < weight.numel(); ++i) {
    const volatile float product =
        uniform(key, Purpose::weights, static_cast<std::uint32_t>(i)) * static_cast<float>(2 * bound);
    const float sum = product + static_cast<float>(-bound);
    EXPECT_EQ(weight[i].item<float>(), sum) << i;
  }
}

// Tensors of one shape correlate by chance alone; 0.99: of short ones chance may do much, but makes no copies.
TEST(Initialize, EachNameHasNumbersOfItsOwn) {
  const auto unet = make_unet(preset_configs(Preset::tiny).unet, 1);
  const InitRules rules = plan_pytorch_init(parameter_shapes(*unet));
  std::map<std::vector<std::int64_t>, std::vector<torch::Tensor>> random_of_shape;
  for (const auto& [name, tensor] : weights_of(*unet))
    if (rules.at(name).kind != InitRule::Kind::constant)
      random_of_shape[tensor.sizes().vec()].push_back(tensor.flatten());
  for (const auto& [shape, tensors] : random_of_shape) {
    const torch::Tensor correlations =
        torch::corrcoef(torch::stack(tensors).to(torch::kFloat64)) - torch::eye(std::ssize(tensors));
    const double limit = std::min(0.99, 6 / std::sqrt(static_cast<double>(tensors.front().numel())));
    EXPECT_LT(correlations.abs().max().item<double>(), limit) << json(shape);
  }
}

TEST(InitPipeline, WritesACompletePipeline) {
  const TempDir dir;
  init_pipeline(Preset::tiny, copy_tokenizer, dir / "tiny", 7);
  const json report = inspect_pipeline(dir / "tiny");
  EXPECT_THAT(report.at("problems"), IsEmpty()) << report.at("problems");
  EXPECT_EQ(report.at("components").size(), 5u);
  const PipelineFolder pipeline = PipelineFolder::open(dir / "tiny");
  const Tensors text = weights_of(*pipeline.load_text_encoder(torch::kCPU, torch::kFloat32));
  EXPECT_NEAR(text.at("text_model.embeddings.token_embedding.weight").std().item<double>(), 1, 0.01);
  const Tensors unet = weights_of(*pipeline.load_unet(torch::kCPU, torch::kFloat32));
  EXPECT_TRUE(torch::equal(unet.at("conv_in.weight"),
                           weights_of(*make_unet(preset_configs(Preset::tiny).unet, 7)).at("conv_in.weight")));
}

TEST(InitPipeline, WithoutASeedWritesTheSameFilesButTheWeights) {
  const TempDir dir;
  init_pipeline(Preset::tiny, copy_tokenizer, dir / "whole", 7);
  init_pipeline(Preset::tiny, copy_tokenizer, dir / "shapes", std::nullopt);
  const auto files = [](const fs::path& folder, bool weights) {
    std::map<fs::path, std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file() || (!weights && entry.path().extension() == ".safetensors")) continue;
      found[entry.path().lexically_relative(folder)] = read_file(entry.path());
    }
    return found;
  };
  EXPECT_EQ(files(dir / "shapes", true), files(dir / "whole", false));
  EXPECT_EQ(files(dir / "whole", true).size(), files(dir / "whole", false).size() + 3);
}

// Process numbers repeat from container to container.
TEST(InitPipeline, PublishesNothingOfAnother) {
  const TempDir dir;
  const auto theirs = dir.path() / ("tiny.tmp-" + process_name());
  fs::create_directories(theirs / "unet");
  std::ofstream(theirs / "unet/diffusion_pytorch_model.non_ema.safetensors") << "theirs";
  init_pipeline(Preset::tiny, copy_tokenizer, dir / "tiny", std::nullopt);
  EXPECT_FALSE(fs::exists(dir / "tiny/unet/diffusion_pytorch_model.non_ema.safetensors"));
  EXPECT_TRUE(fs::exists(theirs / "unet/diffusion_pytorch_model.non_ema.safetensors"));
}

TEST(InitPipeline, RemovesWhatKilledOnesHaveLeftOfTheSameFolder) {
  const TempDir dir;
  const auto own = process_name(), gone = own.substr(0, own.find('-')) + "-4194999";  // beyond pid_max
  const auto make = [&](const std::string& name, std::chrono::hours age) {
    const fs::path folder = dir / name;
    fs::create_directories(folder / "unet");
    std::ofstream(folder / "unet/model.safetensors") << "half";
    fs::last_write_time(folder, fs::file_time_type::clock::now() - age);
    return folder;
  };
  using std::chrono::hours;
  const std::vector left = {make("tiny.tmp-" + gone, hours(0)), make("tiny.tmp-" + gone + "-0123abcd", hours(0)),
                            make("tiny.tmp-0123456789abcdef-17-0123abcd", hours(48))};
  const std::vector others = {make("tiny.tmp-" + own + "-0123abcd", hours(0)),
                              make("tiny.tmp-0123456789abcdef-17", hours(1)), make("tiny.tmp-old", hours(48)),
                              make("tiny.tmp-1", hours(48)), make("tinier.tmp-" + gone, hours(48))};
  init_pipeline(Preset::tiny, copy_tokenizer, (dir / "tiny").string() + "/", std::nullopt);
  for (const auto& folder : left) EXPECT_FALSE(fs::exists(folder)) << folder;
  for (const auto& folder : others) EXPECT_TRUE(fs::exists(folder / "unet/model.safetensors")) << folder;
}

TEST(InitPipeline, RefusesAUsedFolder) {
  const TempDir dir;
  dir.write("a file", "");
  try {
    init_pipeline(Preset::tiny, copy_tokenizer, dir.path(), 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr(dir.path().string()));
  }
}

}  // namespace
}  // namespace millrace
