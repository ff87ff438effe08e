#include "session.h"

#include <sched.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/visible.h"
#include "millrace/nn/device.h"

namespace millrace {

double hang_seconds(const config::Auto<Duration>& hang_timeout) {
  const auto limit = hang_timeout.value_or(Duration::seconds(1800));
  if (limit.unit != Duration::Unit::seconds)
    fail(Exit::usage, "guard.hang_timeout: {} is not a time", to_string(limit));
  return limit.count;
}

static int cores_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

Session start_session(World& world, const std::string& device, const config::Auto<Duration>& hang_timeout) {
  stop::install();
  log::init({"", world.rank(), world.rank() == 0, ""});
  world.group().set_time_limit(hang_seconds(hang_timeout));
  const int threads = std::max(1, cores_of_this_process() / world.local_size());
  at::set_num_threads(threads);
  return {world, resolve_device(device, world.local_rank()), threads};
}

DataPlan share_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch) {
  std::optional<Error> error;
  std::string bytes;
  if (world.rank() == 0) {
    try {
      bytes = to_bytes(make_data_plan(source, data, global_batch));
    } catch (const Error& failed) {
      error = failed;
    }
  }
  agree(world, error);
  return data_plan_from_bytes(world.broadcast(bytes));
}

std::vector<std::string> gpu_names(const Session& session) {
  return session.world.group().all_gather_strings(session.device.is_cuda() ? device_name(session.device) : "");
}

void abort_run(const World& world, const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const auto exit = known ? known->exit() : Exit::bug;
  log::progress("");
  log::error("{}", error.what());
  if (known && !known->hint().empty()) log::error("hint: {}", known->hint());
  log::flush();
  // A rank whose log does not reach the console speaks up, unless rank 0 says the same: settings are checked alike
  // everywhere.
  if (world.rank() != 0 && exit != Exit::usage)
    fmt::print(stderr, "millrace: rank {} on {}: {}\n", world.rank(), world.host(), visible(error.what()));
  world.abort(exit);
}

}  // namespace millrace
