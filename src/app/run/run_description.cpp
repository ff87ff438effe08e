#include "run/run_description.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "environment.h"
#include "millrace/core/clock.h"
#include "millrace/core/json_text.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {

using Json = nlohmann::ordered_json;

std::string environment_of(const Session& session, const std::string& role, int micro_batch) {
  const auto& world = session.world;
  Json mine = {{"rank", world.rank()},
               {"host", world.host()},
               {"role", role},
               {"device", session.device.is_cuda() ? "cuda" : "cpu"},
               {"device_name", device_name(session.device)},
               {"threads", session.threads}};
  if (const auto uuid = gpu_uuid(session.device); !uuid.empty()) mine["gpu"] = uuid;
  const auto ranks = world.group().all_gather_strings(dump_any(mine));
  if (!session.is_root()) return "";
  Json json = {{"time", utc_now()}};
  for (const auto& [name, text] : describe_environment()) json[name] = text;
  json["micro_batch"] = micro_batch;
  if (const char* typed = std::getenv("MILLRACE_TYPED_RESUME")) json["typed_resume"] = typed;
  for (const auto& rank : ranks) json["ranks"].push_back(Json::parse(rank));
  return dump_any(json, 1) + "\n";
}

}  // namespace millrace
