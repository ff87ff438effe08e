#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/models/clip_model.h"
#include "millrace/models/weights.h"
#include "models/golden_network.h"
#include "test_data.h"

namespace millrace {
namespace {

using golden::Json;
using golden::Shape;

class ClipGolden : public golden::OnDevices {};

TEST_P(ClipGolden, HiddenStatesAreThoseOfTransformers) {
  const Json expected = golden::load("clip_" + name());
  CLIPTextModel text(CLIPTextConfig::from_json(expected["config"]));
  golden::fill_weights(*text);
  Json shapes;
  for (const auto& item : text->named_parameters()) shapes[item.key()] = item.value().sizes().vec();
  EXPECT_EQ(shapes, expected["shapes"]);
  nn::place(*text, device(), torch::kFloat32);

  std::vector<torch::Tensor> rows;
  for (const auto& row : expected["ids"]) rows.push_back(torch::tensor(row.get<Shape>()));
  EXPECT_LT(golden::relative_error(text(torch::stack(rows).to(device())), expected["hidden"]), output_tolerance());
}

MILLRACE_GOLDENS_ON_DEVICES(ClipGolden, "sd1_like", "sd2_like");

TEST(Clip, HasTheStateDictOfStableDiffusion) {
  std::ifstream file(test::data_dir() / "presets/sd2_shapes.json");
  const Json expected = Json::parse(file)["text_encoder"];
  const Json config = {{"hidden_size", 1024},       {"intermediate_size", 4096}, {"num_hidden_layers", 23},
                       {"num_attention_heads", 16}, {"hidden_act", "gelu"},      {"eos_token_id", 2}};
  CLIPTextModel text(CLIPTextConfig::from_json(config));
  Json actual;
  for (const auto& item : text->named_parameters()) actual[item.key()] = item.value().sizes().vec();
  EXPECT_EQ(actual, expected);
}

// Older folders of CLIP hold settings of the generation of text in text_config.
TEST(ClipConfig, OfAClipModelMayHoldAnyKey) {
  const test::TempDir dir;
  Json config = Json::parse(read_file(test::data_dir() / "evaluate/clip/config.json"));
  config["text_config"].update({{"num_beams", 1}, {"temperature", 1.0}});
  const auto said_by = [&](const auto& read) {
    const auto file = dir / "log";
    log::init({.console = false, .file = file.string()});
    read();
    log::init({});
    return read_file(file);
  };
  const auto of_model = said_by([&] { CLIPModelConfig::from_json(config, "config.json"); });
  EXPECT_EQ(of_model.find("num_beams"), std::string::npos) << of_model;
  const auto of_text = said_by([&] { CLIPTextConfig::from_json(config["text_config"]); });
  EXPECT_NE(of_text.find("num_beams"), std::string::npos) << of_text;
}

// As transformers' CLIPTextModel takes the folder of a CLIPModel; the golden one is such a folder.
TEST(Clip, OfAWholeModelTheTextEncoderIsTaken) {
  const auto folder = test::data_dir() / "evaluate/clip";
  const Json config = Json::parse(read_file(folder / "config.json"));
  ASSERT_EQ(config["model_type"], "clip");
  const auto parsed = CLIPTextConfig::from_json(config);
  EXPECT_EQ(parsed.hidden_size, config["text_config"]["hidden_size"].get<std::int64_t>());
  EXPECT_EQ(parsed.num_hidden_layers, config["text_config"]["num_hidden_layers"].get<std::int64_t>());
  CLIPTextModel text(parsed);
  EXPECT_NO_THROW(load_weights(*text, folder, transformers_stem));
  CLIPTextConfig wide = parsed;
  wide.num_hidden_layers += 1;
  EXPECT_THROW(load_weights(*CLIPTextModel(wide), folder, transformers_stem), Error)
      << "of its own parts none may lack";
}

TEST(ClipConfig, OfPicturesHasBounds) {
  Json config = Json::parse(read_file(test::data_dir() / "evaluate/clip/config.json"));
  for (const char* key : {"num_hidden_layers", "image_size", "patch_size", "intermediate_size"}) {
    Json wrong = config;
    wrong["vision_config"][key] = 1'000'000;
    const auto error = test::error_of([&] { CLIPModelConfig::from_json(wrong, "config.json"); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find(std::string("config.json: vision_config: ") + key), std::string::npos)
        << error.what();
  }
}

TEST(ClipConfig, RefusesByKey) {
  const std::vector<Json> refused = {{{"num_attention_heads", 7}},   {{"hidden_act", "tanh"}},
                                     {{"use_attention_mask", true}}, {{"vocab_size", -1}},
                                     {{"model_type", "t5"}},         {{"model_type", "clip_vision_model"}},
                                     {{"vocab_size", 2'000'000}},    {{"num_hidden_layers", 1'000'000'000}},
                                     {{"hidden_size", 800'000}},     {{"max_position_embeddings", 1'000'000'000}}};
  for (const Json& json : refused) {
    try {
      CLIPTextConfig::from_json(json);
      ADD_FAILURE() << json;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_NE(std::string(error.what()).find(json.begin().key()), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace millrace
