#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/encoder_cost.h"
#include "millrace/models/initialize.h"
#include "millrace/models/presets.h"
#include "millrace/nn/fused.h"
#include "models/golden_network.h"
#include "test_data.h"

namespace millrace {
namespace {

using golden::Json;
using golden::Shape;

class VaeGolden : public golden::OnDevices {
 protected:
  void expect_reference(bool channels_last) const;
};

void VaeGolden::expect_reference(bool channels_last) const {
  const Json expected = golden::load("vae_" + name());
  AutoencoderKL vae(AutoencoderKLConfig::from_json(expected["config"]));
  golden::fill_weights(*vae);
  nn::place(*vae, device(), torch::kFloat32, channels_last);

  const auto moments = vae->encode(golden::noise("image", expected["image"].get<Shape>()).to(device()));
  EXPECT_LT(golden::relative_error(moments, expected["moments"]), output_tolerance());

  const auto decoded = vae->decode(golden::unit("latent", expected["latent"].get<Shape>()).to(device()));
  using torch::indexing::Slice;
  const auto every_third = decoded.index({Slice(), Slice(), Slice(0, {}, 3), Slice(0, {}, 3)});
  EXPECT_LT(golden::relative_error(every_third, expected["decoded"]), output_tolerance());

  const auto loss = torch::mse_loss(moments, golden::unit("moments", moments.sizes().vec()).to(device())) +
                    torch::mse_loss(decoded, golden::unit("decoded", decoded.sizes().vec()).to(device()));
  loss.backward();
  golden::expect_gradients(*vae, expected["gradients"], gradient_tolerance());
}

TEST_P(VaeGolden, MomentsImagesAndGradientsAreThoseOfDiffusers) {
  expect_reference(/*channels_last=*/false);
}

TEST_P(VaeGolden, ChannelsLastChangesNothing) {
  expect_reference(/*channels_last=*/true);
}

MILLRACE_GOLDENS_ON_DEVICES(VaeGolden, "sd_like", "odd");

TEST(Vae, HasTheStateDictOfStableDiffusion) {
  std::ifstream file(test::data_dir() / "presets/sd2_shapes.json");
  const Json expected = Json::parse(file)["vae"];
  const Json config = {{"block_out_channels", {128, 256, 512, 512}},
                       {"down_block_types", std::vector<std::string>(4, "DownEncoderBlock2D")},
                       {"up_block_types", std::vector<std::string>(4, "UpDecoderBlock2D")},
                       {"layers_per_block", 2}};
  const auto parsed = AutoencoderKLConfig::from_json(config);
  EXPECT_EQ(parsed.factor(), 8);
  EXPECT_EQ(parsed.latent_side(512), 64);
  EXPECT_STREQ(test::error_of([&] { (void)parsed.latent_side(260); }).what(),
               "transform.resolution = 260 is not a multiple of the VAE's factor 8");
  EXPECT_EQ(parsed.scaling_factor, 0.18215);
  // Kernels count to 2^31 - 1: the encoder's maps have 128 channels at the size of the image and a pixel more, the
  // decoder's 256 at its size.
  EXPECT_EQ(parsed.images_to_encode(512, 512), 63);
  EXPECT_EQ(parsed.images_to_decode(512, 512), 31);
  EXPECT_EQ(parsed.images_of_one_pass(512), 31);
  EXPECT_EQ(parsed.images_of_one_pass(256), 127);
  AutoencoderKL vae(parsed);
  Json actual;
  for (const auto& item : vae->named_parameters()) actual[item.key()] = item.value().sizes().vec();
  EXPECT_EQ(actual, expected);
}

// A level of half the size has more elements where it has more than four times the channels; a decoder may grow
// narrower towards the latents, too.
TEST(VaeConfig, LimitsBatchesByTheLargestMapOfAnyLevel) {
  const auto with_channels = [](const std::vector<int>& channels) {
    Json json = preset_configs(Preset::tiny).vae;
    json["block_out_channels"] = channels;
    json["norm_num_groups"] = 8;
    json["down_block_types"] = std::vector<std::string>(channels.size(), "DownEncoderBlock2D");
    json["up_block_types"] = std::vector<std::string>(channels.size(), "UpDecoderBlock2D");
    return AutoencoderKLConfig::from_json(json);
  };
  constexpr std::int64_t numbered = (std::int64_t{1} << 31) - 1;
  const auto widening = with_channels({16, 128});
  EXPECT_EQ(widening.largest_encoder_map(512, 512), 128 * 257 * 257);
  EXPECT_EQ(widening.images_to_encode(512, 512), numbered / (128 * 257 * 257));
  EXPECT_EQ(widening.images_to_decode(512, 512), numbered / (128 * 512 * 512));
  EXPECT_EQ(with_channels({8, 8, 256}).images_to_decode(512, 512), numbered / (256 * 256 * 256));
  const auto narrowing = with_channels({64, 32});
  EXPECT_EQ(narrowing.images_to_encode(512, 512), numbered / (64 * 513 * 513));
  EXPECT_EQ(narrowing.images_to_decode(512, 512), numbered / (64 * 512 * 512));
  // What is estimated to be in memory is that of the images of one pass.
  const auto bytes = [&](std::int64_t images) { return vae_encode_bytes(widening, images, 512, 512, 4, torch::kCUDA); };
  EXPECT_EQ(bytes(1000), bytes(widening.images_to_encode(512, 512)));
}

TEST(Vae, LargeBatchesGoThroughItInEqualParts) {
  using Sizes = std::vector<std::int64_t>;
  Sizes sizes;
  const auto negated = [&](const torch::Tensor& part) {
    sizes.push_back(part.size(0));
    return -part;
  };
  const auto sizes_of_parts = [&](std::int64_t rows, std::int64_t limit) {
    sizes.clear();
    const torch::Tensor batch = torch::arange(rows);
    EXPECT_TRUE(torch::equal(in_parts(batch, limit, negated), -batch));
    return sizes;
  };
  EXPECT_EQ(sizes_of_parts(5, 2), (Sizes{2, 2, 1}));
  EXPECT_EQ(sizes_of_parts(4, 3), (Sizes{2, 2}));
  EXPECT_EQ(sizes_of_parts(3, 3), Sizes{3});
}

// As a GPU's producer has them: no norm of VAE or text encoder may lie otherwise than our kernels want it.
TEST(Vae, AndTextEncoderHaveAllNormsByOurKernels) {
  const auto counted = [] {
    int own = 0, others = 0;
    std::sscanf(nn::norm_kernels().c_str(), "%d by our kernels, %d by LibTorch's", &own, &others);
    return std::pair(own, others);
  };
  const auto configs = preset_configs(Preset::tiny);
  auto vae = make_vae(configs.vae, /*seed=*/1);
  auto text = make_text_encoder(configs.text_encoder, /*seed=*/1);
  nn::place(*vae, torch::kCPU, torch::kFloat32, /*channels_last=*/true);
  const auto before = counted();
  nn::use_fused_kernels(nn::FusedKernels::everywhere);
  const torch::InferenceMode guard;
  const auto moments = vae->encode(torch::rand({2, 3, 32, 24}).contiguous(torch::MemoryFormat::ChannelsLast));
  vae->decode(moments.narrow(1, 0, moments.size(1) / 2));
  text->forward(torch::ones({2, 77}, torch::kInt64));
  nn::use_fused_kernels(nn::FusedKernels::by_device);
  EXPECT_GT(counted().first, before.first + 20);
  EXPECT_EQ(counted().second, before.second);
}

TEST(VaeConfig, RefusesByKey) {
  const std::vector<Json> refused = {{{"down_block_types", {"AttnDownEncoderBlock2D"}}},
                                     {{"up_block_types", {"UpDecoderBlock2D", "UpDecoderBlock2D"}}},
                                     {{"latents_mean", {0, 0, 0, 0}}},
                                     {{"norm_num_groups", 48}},
                                     {{"in_channels", 4}},
                                     {{"out_channels", 1}},
                                     {{"layers_per_block", 1'000'000'000'000}},
                                     {{"block_out_channels", {64'000'000}}},
                                     {{"latent_channels", 100'000}},
                                     {{"scaling_factor", "large"}}};
  for (const Json& json : refused) {
    try {
      AutoencoderKLConfig::from_json(json);
      ADD_FAILURE() << json;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_NE(std::string(error.what()).find(json.begin().key()), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace millrace
