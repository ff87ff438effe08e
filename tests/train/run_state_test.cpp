#include "millrace/train/run_state.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(RunState, ComesBackFromJson) {
  RunState state;
  state.step = 1ll << 40;
  state.samples = 120;
  state.skipped = 1;
  state.updates = 11;
  state.ema_updates = 12;
  state.seconds = 0.1;
  state.cursors[0] = {.epoch = 1, .unit = 2, .row = 1ull << 50, .given = 4};
  state.cursors[11] = {};
  state.ledger = {{"rejected", {{"a.tar/1", "decode_error"}}}};

  const auto back = RunState::from_json(nlohmann::json::parse(state.to_json().dump()));
  EXPECT_EQ(back.step, state.step);
  EXPECT_EQ(back.samples, state.samples);
  EXPECT_EQ(back.skipped, state.skipped);
  EXPECT_EQ(back.updates, state.updates);
  EXPECT_EQ(back.ema_updates, state.ema_updates);
  EXPECT_EQ(back.seconds, state.seconds);
  EXPECT_EQ(back.cursors, state.cursors);
  EXPECT_EQ(back.ledger, state.ledger);
}

TEST(RunState, AMissingPartIsAnError) {
  const auto whole = RunState{}.to_json();
  for (const auto& [key, value] : whole.items()) {
    auto json = whole;
    json.erase(key);
    EXPECT_THROW(RunState::from_json(json), nlohmann::json::exception) << key;
  }
}

}  // namespace
}  // namespace millrace
