#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "devices.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/stop.h"
#include "millrace/generate/generate.h"
#include "millrace/generate/sampling.h"
#include "millrace/models/tensors.h"
#include "millrace/nn/layers.h"
#include "test_data.h"

// Against tests/golden/generate, written by scripts/goldens/generate.py with diffusers' StableDiffusionPipeline.
namespace millrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const Json& reference() {
  static const Json json = Json::parse(std::ifstream(test::data_dir() / "generate/reference.json"));
  return json;
}

// Numbers in [-1, 1) without visible pattern, as the script makes them.
torch::Tensor noise(std::int64_t count, int salt) {
  torch::Tensor values = torch::empty({count}, torch::kFloat64);
  for (std::int64_t i = 0; i < count; ++i) {
    const double s = std::sin(12.9898 * (i + 1.0) + 78.233 * (salt + 1.0)) * 43758.5453;
    values.data_ptr<double>()[i] = 2 * (s - std::floor(s)) - 1;
  }
  return values;
}

void fill(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> sorted;
  for (const auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    const std::string prefix = "text_model.";
    sorted[name.starts_with(prefix) ? name.substr(prefix.size()) : name] = item.value();
  }
  int salt = 0;
  for (auto& [name, p] : sorted) {
    const double scale = p.dim() == 1 ? 0.2 : std::sqrt(3.0 / (static_cast<double>(p.numel()) / p.size(0)));
    const double offset = p.dim() == 1 && name.ends_with("weight") ? 1 : 0;
    p.copy_((offset + scale * noise(p.numel(), salt++)).reshape(p.sizes()));
  }
  model.eval();
}

// The tiny pipeline on a device; the scheduler's prediction is set by each case.
struct TinyPipeline {
  ClipTokenizer tokenizer = ClipTokenizer::load(test::data_dir() / "generate/tokenizer");
  ImageModel model{UNet2DConditionModel(UNet2DConditionConfig::from_json(reference().at("unet"))),
                   AutoencoderKL(AutoencoderKLConfig::from_json(reference().at("vae"))),
                   CLIPTextModel(CLIPTextConfig::from_json(reference().at("text_encoder"))), tokenizer,
                   SchedulerConfig::from_json(reference().at("scheduler"))};

  explicit TinyPipeline(torch::Device device) {
    torch::set_num_threads(1);
    const auto prepare = [&](torch::nn::Module& network) {
      fill(network);
      nn::place(network, device, torch::kFloat32);
    };
    prepare(*model.unet);
    prepare(*model.vae);
    prepare(*model.text_encoder);
  }
};

TinyPipeline& pipeline(torch::Device device) {
  static auto& pipelines = *new std::map<torch::DeviceType, TinyPipeline>;  // at exit the driver may go first
  return pipelines.try_emplace(device.type(), device).first->second;
}

std::vector<ImageRequest> requests() {
  std::vector<ImageRequest> all;
  for (const auto& prompt : reference().at("prompts"))
    all.push_back({prompt, reference().at("negative_prompt"), 100 + all.size()});
  return all;
}

std::vector<GeneratedImage> run(const std::vector<ImageRequest>& wanted, const GenerateConfig& config,
                                const std::optional<torch::Tensor>& latents = std::nullopt,
                                torch::Device device = torch::kCPU) {
  std::vector<GeneratedImage> images;
  generate(pipeline(device).model, wanted, config, latents,
           [&](const GeneratedImage& image) { images.push_back(image); });
  return images;
}

std::optional<SchedulerClass> class_named(std::string_view name) {
  for (const auto c : {SchedulerClass::ddim, SchedulerClass::pndm, SchedulerClass::euler_discrete,
                       SchedulerClass::dpmsolver_multistep, SchedulerClass::unipc_multistep}) {
    if (name == to_string(c)) return c;
  }
  return std::nullopt;
}

int hex_digit(char c) {
  return c <= '9' ? c - '0' : c - 'A' + 10;
}

std::vector<std::uint8_t> from_hex(const std::string& text) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(16 * hex_digit(text[i]) + hex_digit(text[i + 1])));
  return bytes;
}

int largest_difference(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  int largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

class GenerateOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(GenerateOnDevice);

TEST_P(GenerateOnDevice, EqualsStableDiffusionPipeline) {
  const torch::Tensor latents = std::sqrt(3.0) * noise(2 * 4 * 4 * 4, 1).reshape({2, 4, 4, 4}).to(torch::kFloat32);
  auto& scheduler = pipeline(device()).model.scheduler;
  const SchedulerConfig file = scheduler;
  double worst = 0;
  for (const auto& row : reference().at("cases")) {
    SCOPED_TRACE(fmt::format("{} {} guidance {} rescale {} steps {}", row.at("to").get<std::string>(),
                             row.at("prediction").get<std::string>(), row.at("guidance_scale").get<double>(),
                             row.at("guidance_rescale").get<double>(), row.at("steps").get<int>()));
    scheduler = file.with_keys({{"prediction_type", row.at("prediction")}});
    const GenerateConfig config{.steps = row.at("steps"),
                                .guidance_scale = row.at("guidance_scale"),
                                .guidance_rescale = row.at("guidance_rescale"),
                                .sampler = class_named(row.at("to").get<std::string>())};
    const auto images = run(requests(), config, latents, device());
    ASSERT_EQ(images.size(), 2);
    const torch::Tensor expected = torch::tensor(row.at("latents").get<std::vector<float>>()).reshape({2, 4, 4, 4});
    const auto pixels = from_hex(row.at("pixels"));
    for (int i = 0; i < 2; ++i) {
      const double error = ((images[i].latent - expected[i]).norm() / expected[i].norm()).item<double>();
      EXPECT_LT(error, 1e-3);
      worst = std::max(worst, error);
      const auto& image = images[i].image;
      ASSERT_EQ(image.pixels.size(), 8 * 8 * 3);
      EXPECT_LE(
          largest_difference(image.pixels, std::span(pixels).subspan(i * image.pixels.size(), image.pixels.size())), 2);
    }
  }
  scheduler = file;
  RecordProperty("worst_relative_error", fmt::format("{:.2g}", worst));
}

// Nine are more than the decoder takes at once.
TEST_P(GenerateOnDevice, ASeedGivesTheSamePictureInAnyBatch) {
  std::vector<ImageRequest> nine;
  for (std::uint64_t i = 0; i < 9; ++i) nine.push_back({fmt::format("picture {}", i), "", 7 + i});
  const auto together = run(nine, {.steps = 3, .batch_size = 9}, std::nullopt, device());
  const auto split = run(nine, {.steps = 3, .batch_size = 2}, std::nullopt, device());
  ASSERT_EQ(together.size(), 9);
  ASSERT_EQ(split.size(), 9);
  for (std::size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(split[i].index, i);
    EXPECT_LE(largest_difference(split[i].image.pixels, together[i].image.pixels), 1);
  }
  const auto alone = run({nine[3]}, {.steps = 3}, std::nullopt, device());
  EXPECT_LE(largest_difference(alone[0].image.pixels, together[3].image.pixels), 1);
  EXPECT_FALSE(torch::allclose(together[0].latent, together[1].latent));
}

// The prompts are alike, so that the latents alone tell the pictures apart.
TEST(Generate, EachPictureBeginsWithItsOwnInitialLatents) {
  const std::vector<ImageRequest> four(4, requests()[0]);
  const torch::Tensor latents = noise(4 * 4 * 4 * 4, 2).reshape({4, 4, 4, 4}).to(torch::kFloat32);
  const auto together = run(four, {.steps = 1, .batch_size = 4}, latents);
  const auto split = run(four, {.steps = 1, .batch_size = 3}, latents);
  ASSERT_EQ(split.size(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::allclose(split[i].latent, together[i].latent, 1e-4, 1e-5)) << i;
    EXPECT_EQ(torch::allclose(split[i].latent, together[0].latent, 1e-4, 1e-5), i == 0) << i;
  }
}

TEST_P(GenerateOnDevice, PicturesThatAreNotFiniteAreAnError) {
  auto& vae = pipeline(device()).model.vae;
  for (const float value : {NAN, INFINITY}) {
    auto latents = torch::zeros({2, 4, 4, 4}, device());
    EXPECT_EQ(decode_scaled_latents(vae, latents).size(), 2);
    latents[1][0][3][3] = value;
    EXPECT_EQ(test::error_of([&] { decode_scaled_latents(vae, latents); }).exit(), Exit::numerics);
    EXPECT_EQ(test::error_of([&] { decode_unscaled_latents(vae, latents); }).exit(), Exit::numerics);
  }
}

// As in diffusers' pipelines of VAEs that have one, StableDiffusion3Pipeline for example: latents / scaling_factor +
// shift_factor.
TEST(Generate, TheShiftOfAVaeIsAdded) {
  auto config = reference().at("vae");
  const double scale = config.at("scaling_factor"), shift = 0.5;
  config["shift_factor"] = shift;
  AutoencoderKL shifted(AutoencoderKLConfig::from_json(config));
  fill(*shifted);
  nn::place(*shifted, torch::kCPU, torch::kFloat32);
  auto& plain = pipeline(torch::kCPU).model.vae;
  const torch::Tensor latents = scale * noise(4 * 4 * 4, 4).reshape({1, 4, 4, 4}).to(torch::kFloat32);
  const auto pixels = [](AutoencoderKL& vae, const torch::Tensor& scaled) {
    return decode_scaled_latents(vae, scaled).at(0).pixels;
  };
  EXPECT_LE(largest_difference(pixels(shifted, latents), pixels(plain, latents + scale * shift)), 1);
  EXPECT_GT(largest_difference(pixels(shifted, latents), pixels(plain, latents)), 1);
}

// Not once a batch, nor once a call: the embedding stays where it is.
TEST(Generate, ANegativePromptIsEncodedOnce) {
  auto& model = pipeline(torch::kCPU).model;
  const std::vector<ImageRequest> three = {{"a", "blurry", 1}, {"b", "blurry", 2}, {"c", "blurry", 3}};
  run({three[0]}, {.steps = 1});
  ASSERT_TRUE(model.negative);
  EXPECT_EQ(model.negative->text, "blurry");
  const auto* const first = model.negative->embedding.const_data_ptr();
  const auto again = run(three, {.steps = 1, .batch_size = 1});
  EXPECT_EQ(model.negative->embedding.const_data_ptr(), first);
  // Another one is encoded, also in the midst of a batch, and each picture has its own.
  const auto mixed = run({three[0], {"b", "dark", 2}, three[2]}, {.steps = 1});
  EXPECT_TRUE(torch::allclose(mixed[0].latent, again[0].latent, 1e-4, 1e-5));
  EXPECT_FALSE(torch::allclose(mixed[1].latent, again[1].latent, 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(mixed[2].latent, again[2].latent, 1e-4, 1e-5));
  // Without guidance nobody asks for one.
  model.negative.reset();
  run(three, {.steps = 1, .guidance_scale = 1});
  EXPECT_FALSE(model.negative);
}

// In a process of its own, since nothing takes a stop back. A batch of large pictures takes longer than a time limit's
// warning, so whoever is told does not end it.
TEST(Generate, EndsInTheMidstOfABatchWhenToldToStop) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto told = [] {
    stop::request(15);
    try {
      run(requests(), {.steps = 1});
    } catch (const Error& error) {
      std::exit(static_cast<int>(error.exit()));
    }
    std::exit(0);
  };
  EXPECT_EXIT(told(), testing::ExitedWithCode(static_cast<int>(Exit::requeue)), "");
}

TEST(Generate, SizesComeFromTheConfigOrTheKeys) {
  const auto images = run({requests()[0]}, {.steps = 1, .height = {16}, .width = {24}});
  EXPECT_EQ(images[0].image.height, 16);
  EXPECT_EQ(images[0].image.width, 24);
  EXPECT_THROW(run(requests(), {.steps = 1, .height = {15}}), Error);
}

TEST(Generate, InitialLatentsOfAnotherShapeAreRefused) {
  EXPECT_THROW(run(requests(), {.steps = 1}, torch::zeros({1, 4, 4, 4})), Error);
  EXPECT_THROW(run(requests(), {.steps = 1}, torch::zeros({2, 4, 8, 8})), Error);
}

// As of networks for inpainting.
TEST(Generate, AUNetOfMoreThanLatentsIsRefused) {
  auto model = pipeline(torch::kCPU).model;
  for (const char* key : {"in_channels", "out_channels"}) {
    auto config = reference().at("unet");
    config[key] = 9;
    model.unet = UNet2DConditionModel(UNet2DConditionConfig::from_json(config));
    const auto error = test::error_of([&] { latent_shape(model, {}); });
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find(fmt::format("{} = 9", key)), std::string::npos) << error.what();
  }
}

// As of Stable Diffusion 1 beside a U-Net of Stable Diffusion 2.
TEST(Generate, ATextEncoderThatDoesNotFitIsRefused) {
  auto model = pipeline(torch::kCPU).model;
  for (const auto& [key, value] : {std::pair{"hidden_size", 96}, {"max_position_embeddings", 76}}) {
    auto config = reference().at("text_encoder");
    config[key] = value;
    model.text_encoder = CLIPTextModel(CLIPTextConfig::from_json(config));
    const auto error = test::error_of([&] { latent_shape(model, {}); });
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find(fmt::format("{} = {}", key, value)), std::string::npos) << error.what();
  }
}

// LibTorch would not say which token it is, and a GPU would end the process.
TEST(Generate, ATokenThatTheTextEncoderDoesNotKnowIsNamed) {
  const test::TempDir folder;
  fs::copy(test::data_dir() / "generate/tokenizer", folder.path(), fs::copy_options::recursive);
  folder.write("added_tokens.json", R"({"<cat-toy>": 514})");
  const auto tokenizer = ClipTokenizer::load(folder.path());
  auto& encoder = pipeline(torch::kCPU).model.text_encoder;
  const std::vector<std::string> known = {"a cat"}, unknown = {"a cat", "a <cat-toy>"};
  EXPECT_EQ(text_embeddings(encoder, tokenizer, known).size(0), 1);
  const auto error = test::error_of([&] { text_embeddings(encoder, tokenizer, unknown); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("\"a <cat-toy>\": token id 514"), std::string::npos) << error.what();
}

TEST(Generate, LatentsComeFromFiles) {
  const test::TempDir folder;
  const fs::path file = folder / "latents.safetensors";
  const torch::Tensor latents = noise(2 * 4 * 3 * 5, 3).reshape({2, 4, 3, 5}).to(torch::kFloat32);
  save_latents(file, latents);
  EXPECT_TRUE(torch::equal(load_latents(file), latents));
  write_tensors(file, {{"noise", latents}});
  EXPECT_THROW(load_latents(file), Error);
  write_tensors(file, {{"latents", latents.to(torch::kFloat16)}});
  EXPECT_THROW(load_latents(file), Error);
}

}  // namespace
}  // namespace millrace
