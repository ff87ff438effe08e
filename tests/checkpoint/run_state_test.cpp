#include <gtest/gtest.h>

#include "millrace/checkpoint/run_state.h"
#include "millrace/core/error.h"

namespace millrace {
namespace {

TEST(RunState, ComesBackFromJson) {
  RunState state;
  state.step = 1ll << 40;
  state.samples = 5ll << 30;
  state.skipped = 1;
  state.updates = 11;
  state.ema_updates = 12;
  state.seconds = 0.1;
  state.cursors[0] = {.epoch = 1, .split = 2, .row = 1ull << 50, .given = 4};
  state.cursors[11] = {};
  state.losses = {
      .steps = 7, .mean = 1.0 / 3, .variance = 1e-300, .skips_in_a_row = 2, .first_skip = 90, .of = "0123abcd"};
  state.used_up = {{{5, 6}, 4}, {{90, 99}, 88}};

  const auto back = RunState::from_json(nlohmann::json::parse(state.to_json().dump()));
  EXPECT_EQ(back.step, state.step);
  EXPECT_EQ(back.samples, state.samples);
  EXPECT_EQ(back.skipped, state.skipped);
  EXPECT_EQ(back.updates, state.updates);
  EXPECT_EQ(back.ema_updates, state.ema_updates);
  EXPECT_EQ(back.seconds, state.seconds);
  EXPECT_EQ(back.cursors, state.cursors);
  EXPECT_EQ(back.losses, state.losses);
  EXPECT_EQ(back.used_up, state.used_up);
}

TEST(RunState, AMissingPartIsAnError) {
  const auto whole = RunState{}.to_json();
  for (const auto& [key, value] : whole.items()) {
    auto json = whole;
    json.erase(key);
    if (key == "losses" || key == "used_up") {  // which the first checkpoints of this format lack
      EXPECT_EQ(RunState::from_json(json).losses, LossHistory{});
      EXPECT_TRUE(RunState::from_json(json).used_up.empty());
    } else {
      EXPECT_THROW(RunState::from_json(json), nlohmann::json::exception) << key;
    }
  }
}

TEST(StripeCursors, ComeBackFromJson) {
  const StripeCursors cursors = {{0, {}}, {7, {.epoch = 1, .split = 2, .row = 1ull << 50, .given = 4}}};
  for (const auto& some : {cursors, StripeCursors{}})
    EXPECT_EQ(cursors_from_json(nlohmann::json::parse(to_json(some).dump())), some);
}

TEST(StripeCursors, AreSavedOnlyWhenAllOfThemMoved) {
  const StripeCursors before = {{0, {.row = 8, .given = 3}}, {1, {.epoch = 1, .split = 2}}};
  const StripeCursors after = {{0, {.row = 16}}, {1, {.epoch = 2}}};
  EXPECT_NO_THROW(check_all_moved({}, after, 2));
  EXPECT_NO_THROW(check_all_moved(before, after, 2));
  EXPECT_THROW(check_all_moved({}, after, 3), Error) << "one is missing";
  EXPECT_THROW(check_all_moved(before, {after.begin(), std::next(after.begin())}, 1), Error) << "one is missing";
  for (const StripeCursor stale :
       {before.at(0), StripeCursor{.row = 8, .given = 2}, StripeCursor{.row = 7, .given = 9}})
    EXPECT_THROW(check_all_moved(before, {{0, stale}, {1, after.at(1)}}, 2), Error);
}

}  // namespace
}  // namespace millrace
