#include "run/used_up.h"

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

// A later checkpoint of the same step is another one.
std::string digest_of(const CheckpointReader& checkpoint) {
  return hash128(checkpoint.manifest().dump()).hex();
}

}  // namespace

void remember_used_up(const std::filesystem::path& run_dir, const CheckpointReader& checkpoint,
                      const std::vector<UsedUpSteps>& used_up) {
  const nlohmann::json json = {
      {"checkpoint", step_name(checkpoint.state().step)}, {"digest", digest_of(checkpoint)}, {"used_up", used_up}};
  try {
    write_file_atomically(run_dir / run_file::rollback, json.dump(2) + "\n");
  } catch (const Error& failed) {
    log::warning("a restart before the next checkpoint would meet the bad steps again: {}", failed.what());
  }
}

void read_used_up(const Group& world, const std::filesystem::path& run_dir, Start& start) {
  const auto known = broadcast_from_root(world, [&]() -> std::string {
    const auto file = run_dir / run_file::rollback;
    if (!std::filesystem::exists(file)) return "";
    const auto json = read_json_object(file);
    try {
      if (json.value("digest", "") != digest_of(*start.checkpoint)) return "";
      return nlohmann::json(json.at("used_up").get<std::vector<UsedUpSteps>>()).dump();
    } catch (const nlohmann::json::exception& error) {
      fail(Exit::io, "{}: {}", file.string(), error.what());
    }
  });
  if (!known.empty()) nlohmann::json::parse(known).get_to(start.state.used_up);
}

}  // namespace millrace
