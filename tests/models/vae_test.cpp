#include "millrace/core/error.h"
#include "millrace/models/autoencoder_kl.h"
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
  EXPECT_EQ(parsed.scaling_factor, 0.18215);
  // The decoder's maps have 256 channels at the size of the image, and kernels count to 2^31 - 1.
  EXPECT_EQ(parsed.images_of_one_pass(512), 31);
  EXPECT_EQ(parsed.images_of_one_pass(256), 127);
  AutoencoderKL vae(parsed);
  Json actual;
  for (const auto& item : vae->named_parameters()) actual[item.key()] = item.value().sizes().vec();
  EXPECT_EQ(actual, expected);
}

TEST(VaeConfig, RefusesByKey) {
  const std::vector<Json> refused = {{{"down_block_types", {"AttnDownEncoderBlock2D"}}},
                                     {{"up_block_types", {"UpDecoderBlock2D", "UpDecoderBlock2D"}}},
                                     {{"latents_mean", {0, 0, 0, 0}}},
                                     {{"norm_num_groups", 48}},
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
