#include "millrace/checkpoint/run_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

nlohmann::json RunState::to_json() const {
  return {{"step", step},
          {"samples", samples},
          {"skipped", skipped},
          {"updates", updates},
          {"ema_updates", ema_updates},
          {"seconds", seconds},
          {"losses",
           {{"steps", losses.steps},
            {"mean", losses.mean},
            {"variance", losses.variance},
            {"skips_in_a_row", losses.skips_in_a_row},
            {"first_skip", losses.first_skip},
            {"of", losses.of}}},
          {"used_up", used_up},
          {"cursors", millrace::to_json(cursors)}};
}

RunState RunState::from_json(const nlohmann::json& json) {
  RunState state;
  state.step = json.at("step");
  state.samples = json.at("samples");
  state.skipped = json.at("skipped");
  state.updates = json.at("updates");
  state.ema_updates = json.at("ema_updates");
  state.seconds = json.at("seconds");
  if (const auto losses = json.find("losses"); losses != json.end()) {  // not in the first checkpoints of format 2
    const int skips = losses->at("skips_in_a_row");
    state.losses = {losses->at("steps"),
                    losses->at("mean"),
                    losses->at("variance"),
                    skips,
                    losses->value("first_skip", skips > 0 ? state.step + 1 - skips : 0),
                    losses->value("of", "")};
  }
  if (const auto used_up = json.find("used_up"); used_up != json.end()) used_up->get_to(state.used_up);
  state.cursors = cursors_from_json(json.at("cursors"));
  return state;
}

bool RunState::is_used_up(std::int64_t step) const {
  return std::ranges::any_of(used_up, [&](const UsedUpSteps& steps) { return steps.contains(step); });
}

nlohmann::json to_json(const StripeCursors& cursors) {
  auto json = nlohmann::json::object();
  for (const auto& [stripe, cursor] : cursors)
    json[std::to_string(stripe)] = {cursor.epoch, cursor.split, cursor.row, cursor.given};
  return json;
}

StripeCursors cursors_from_json(const nlohmann::json& json) {
  StripeCursors cursors;
  for (const auto& [stripe, place] : json.items())
    cursors[static_cast<std::uint32_t>(std::stoul(stripe))] = {place.at(0), place.at(1), place.at(2), place.at(3)};
  return cursors;
}

void check_all_moved(const StripeCursors& before, const StripeCursors& after, std::uint32_t stripes) {
  ensure(after.size() == stripes,
         fmt::format("a checkpoint needs the places of all {} stripes, there are {}", stripes, after.size()));
  for (const auto& [stripe, cursor] : before)
    ensure(after.contains(stripe) && cursor < after.at(stripe),
           fmt::format("stripe {} has not moved since the last checkpoint", stripe));
}

}  // namespace millrace
