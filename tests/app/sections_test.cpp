#include <gtest/gtest.h>

#include <array>

#include "app_config.h"
#include "command.h"

namespace millrace {
namespace {

// One file serves them all: what one command describes, each of the others reads or leaves alone.
TEST(Sections, EveryCommandKnowsThoseOfTheOthers) {
  const std::array readers = {download_command(), preprocess_command(), train_command(), train_autoencoder_command(),
                              generate_command(), evaluate_command(),   bench_command()};
  for (const Command& reader : readers) {
    const config::Section root = reader.schema();
    for (const Command& other : readers) {
      const config::Section foreign = other.schema();
      for (const auto& entry : foreign.entries()) {
        EXPECT_TRUE(root.find(entry.name()) || root.ignores(entry.name())) << reader.name << ": " << entry.name();
      }
    }
    EXPECT_FALSE(root.find("optimiser") || root.ignores("optimiser")) << reader.name;  // no command has it
  }
}

// After a restart with other settings the guard learns anew what is usual, where these decide it.
TEST(UsualLosses, AreThoseOfTheirSettings) {
  const auto losses_of = [](const auto& change) {
    TrainConfig config;
    change(config);
    return config.loop(1).losses_of;
  };
  const auto usual = losses_of([](auto&) {});
  EXPECT_EQ(losses_of([](auto& c) { c.optim.lr = 1; }), usual);
  EXPECT_NE(losses_of([](auto& c) { c.batch.global = 16; }), usual) << "a mean of fewer losses varies more";
  EXPECT_NE(losses_of([](auto& c) { c.transform.resolution = 16; }), usual);
}

}  // namespace
}  // namespace millrace
