#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "app_config.h"
#include "command.h"

namespace millrace {
namespace {

bool knows(const config::Section& section, const std::string& name) {
  return section.find(name) || section.ignores(name);
}

// One file serves them all: what one command describes, each of the others reads or leaves alone.
TEST(Sections, EveryCommandKnowsThoseOfTheOthers) {
  const std::array others = {download_command(), preprocess_command(), train_command(), train_autoencoder_command(),
                             generate_command(), evaluate_command(),   probe_command(), inspect_command(),
                             bench_command()};
  std::vector<Command> readers(others.begin(), others.end());
  readers.push_back(export_command());
  for (const Command& reader : readers) {
    const config::Section root = reader.schema();
    for (const Command& other : others) {
      const config::Section foreign = other.schema();
      for (const auto& entry : foreign.entries()) {
        EXPECT_TRUE(knows(root, entry.name())) << reader.name << ": " << entry.name();
        const auto* own = root.find(entry.name());
        if (!own || !own->section || !entry.section) continue;
        for (const auto& below : entry.section->entries()) {
          const auto key = entry.name() + "." + below.name();
          // Who means model.unet.init is told so.
          const bool is_refused = reader.name == "train" && key == "model.init";
          EXPECT_NE(knows(*own->section, below.name()), is_refused) << reader.name << ": " << key;
        }
      }
    }
    EXPECT_FALSE(knows(root, "optimiser")) << reader.name;  // no command has it
  }
}

template <class Config>
std::string losses_of(const auto& change, const nlohmann::json& identity = {{"data", "these"}}) {
  Config config;
  change(config);
  if constexpr (requires { config.loop(1, identity); })
    return config.loop(1, identity).losses_of;
  else
    return config.loop(identity).losses_of;
}

// After a restart with other settings the guard learns anew what is usual, where these decide it.
TEST(UsualLosses, AreThoseOfTheirSettings) {
  const auto losses = [](const auto& change) { return losses_of<TrainConfig>(change); };
  const auto usual = losses([](auto&) {});
  EXPECT_EQ(losses([](auto& c) { c.optim.lr = 1; }), usual);
  // Where things lie, how they are computed, and what counts at the start of a run alone.
  EXPECT_EQ(losses([](auto& c) { c.model.pipeline = {"elsewhere", true}; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.model.gradient_checkpointing = true; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.model.dtype = "bfloat16"; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.model.unet.init = ModelConfig::Init::pretrained; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.data.train.path = {"elsewhere"}; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.data.train.idx_to_prompt = "elsewhere"; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.encode.text_on = EncodeConfig::TextOn::trainer; }), usual);
  EXPECT_NE(losses_of<TrainConfig>([](auto&) {}, {{"data", "others"}}), usual);
  EXPECT_NE(losses([](auto& c) { c.tokenizer.mode = TokenizerConfig::Mode::open_clip; }), usual);
  EXPECT_NE(losses([](auto& c) { c.tokenizer.pad_id.value = 0; }), usual);
  EXPECT_NE(losses([](auto& c) { c.data.images.min_side = 256; }), usual);
  EXPECT_NE(losses([](auto& c) { c.batch.global = 16; }), usual) << "a mean of fewer losses varies more";
  EXPECT_NE(losses([](auto& c) { c.transform.resolution = 16; }), usual);
  EXPECT_NE(losses([](auto& c) { c.objective.snr_gamma = 5; }), usual);
  EXPECT_NE(losses([](auto& c) { c.data.train.filters["width"] = ">=512"; }), usual);
}

TEST(UsualLosses, OfAVaeAreThoseOfItsSettings) {
  const auto losses = [](const auto& change) { return losses_of<AutoencoderTrainConfig>(change); };
  const auto usual = losses([](auto&) {});
  EXPECT_EQ(losses([](auto& c) { c.optim.lr = 1; }), usual);
  EXPECT_NE(losses([](auto& c) { c.transform.resolution = 16; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.data.train.path = {"elsewhere"}; }), usual);
  EXPECT_EQ(losses([](auto& c) { c.model.init = ModelConfig::Init::pretrained; }), usual) << "of the start alone";
  EXPECT_NE(losses_of<AutoencoderTrainConfig>([](auto&) {}, {{"data", "others"}}), usual);
  EXPECT_NE(losses([](auto& c) { c.autoencoder.l1 = 0.5; }), usual);
  EXPECT_NE(losses([](auto& c) { c.data.train.filters["width"] = ">=512"; }), usual);
}

}  // namespace
}  // namespace millrace
