#include "millrace/train/run_state.h"

namespace millrace {

nlohmann::json RunState::to_json() const {
  nlohmann::json places = nlohmann::json::object();
  for (const auto& [stripe, cursor] : cursors)
    places[std::to_string(stripe)] = {cursor.epoch, cursor.unit, cursor.row, cursor.given};
  return {{"step", step},
          {"samples", samples},
          {"skipped", skipped},
          {"updates", updates},
          {"ema_updates", ema_updates},
          {"seconds", seconds},
          {"cursors", places},
          {"ledger", ledger}};
}

RunState RunState::from_json(const nlohmann::json& json) {
  RunState state;
  state.step = json.at("step");
  state.samples = json.at("samples");
  state.skipped = json.at("skipped");
  state.updates = json.at("updates");
  state.ema_updates = json.at("ema_updates");
  state.seconds = json.at("seconds");
  for (const auto& [stripe, place] : json.at("cursors").items())
    state.cursors[static_cast<std::uint32_t>(std::stoul(stripe))] = {place.at(0), place.at(1), place.at(2),
                                                                     place.at(3)};
  state.ledger = json.at("ledger");
  return state;
}

}  // namespace millrace
