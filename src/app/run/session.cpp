#include "run/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>

#include "millrace/comm/watchdog.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sources.h"
#include "millrace/nn/device.h"
#include "millrace/nn/fused.h"
#include "output.h"
#include "run/deadline.h"
#include "run/threads.h"

namespace millrace {
namespace {

constexpr double usual_join_seconds = 600;  // all ranks load LibTorch, often from one file server
constexpr double last_words_seconds = 10;

// By all ranks of `world`, so that none of them waits for another.
bool is_everybodys(const AgreedError& error, const World& world) {
  return error.group().size() == world.size();
}

// One of those who agree speaks for all; the others wait until it has, since whoever aborts first ends it as well.
void report_agreed(const AgreedError& error, const World& world) {
  if (error.group().rank() == 0) {
    print_error(error);
  } else {
    log::close_console();
    log::error("{}", error.what());
  }
  if (is_everybodys(error, world)) return;  // ~World waits for all
  try {
    error.group().set_time_limit(last_words_seconds);
    error.group().barrier();
  } catch (const Error&) {
  }
}

// The rank that has the error ends all as soon as it has unwound and said so.
void wait_for_the_end(const RelayedError& error) {
  log::close_console();
  log::error("{}", error.what());
  log::flush();
  std::this_thread::sleep_for(std::chrono::duration<double>(last_words_seconds));
}

void report_own(const Error& error, const World& world) {
  print_error(error, world.size() == 1 ? "" : fmt::format("rank {} on {}", world.rank(), world.host()));
}

int leave(const World& world, Exit exit, bool in_order) {
  if (!in_order) world.abort(exit);
  return static_cast<int>(exit);
}

}  // namespace

// MPI_Init knows no limit.
static std::optional<Deadline> limit_joining() {
  if (!World::launched()) return std::nullopt;
  const double seconds = join_seconds(usual_join_seconds);
  return std::make_optional<Deadline>(
      seconds, fmt::format("{} has waited {:.0f} s for the other ranks to start", this_process(), seconds));
}

double join_seconds(double usual) {
  const char* text = std::getenv("MILLRACE_JOIN_SECONDS");
  if (!text) return usual;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end == '\0' && seconds > 0 && std::isfinite(seconds)) return seconds;
  throw Error(Exit::usage, fmt::format("MILLRACE_JOIN_SECONDS is no number of seconds above 0: {}", text),
              "write seconds, such as 1800, or unset it");
}

int run_ranks(const std::function<int(World&)>& command) {
  auto joining = limit_joining();
  World world;
  joining.reset();
  try {
    return command(world);
  } catch (const AgreedError& error) {
    report_agreed(error, world);
    return leave(world, error.exit(), is_everybodys(error, world));
  } catch (const RelayedError& error) {
    wait_for_the_end(error);
    report_own(error, world);
    world.abort(error.exit());
  } catch (...) {
    const Error error = present_error();
    report_own(error, world);
    return leave(world, error.exit(), world.size() == 1);
  }
}

bool is_of_the_node(const std::string& key) {
  constexpr std::array keys = {"threads",    "data.threads",   "download.threads", "download.connections",
                               "data.index", "log.prometheus", "run.device"};
  return std::ranges::find(keys, key) != keys.end();
}

void refuse_other_settings(const World& world, const std::vector<config::Change>& differing) {
  if (differing.empty()) return;
  const auto& [key, of_root, own] = differing.front();
  throw Error(Exit::usage,
              fmt::format("rank {} on {} has other settings than rank 0: {} is {}, there {}", world.rank(),
                          world.host(), key, own, of_root),
              "a configuration file that differs, or ${oc.env:...}: mpirun takes variables to other hosts only with "
              "-x NAME");
}

double hang_seconds(const config::Auto<Duration>& hang_timeout) {
  const auto limit = hang_timeout.value_or(Duration::seconds(1800));
  if (limit.unit != Duration::Unit::seconds)
    fail(Exit::usage, "guard.hang_timeout: {} is not a time", to_string(limit));
  return limit.count;
}

Session start_session(World& world, const std::string& device, const config::Auto<Duration>& hang_timeout,
                      const config::Auto<int>& wanted_threads) {
  log::init({"", world.rank(), world.rank() == 0, ""});
  on_all(world.group(), [&] {
    world.group().set_time_limit(phase::slow_factor * hang_seconds(hang_timeout) + watchdog_lead_seconds);
  });
  const int threads = count_threads(world, wanted_threads);
  use_threads(threads);
  return {world, on_all(world.group(), [&] { return resolve_device(device, world.local_rank()); }), threads};
}

void choose_kernels(torch::Device device, bool deterministic, const config::Auto<bool>& fused) {
  if (deterministic && device.is_cuda()) compute_deterministically();
  if (fused.value) nn::use_fused_kernels(*fused.value ? nn::FusedKernels::everywhere : nn::FusedKernels::nowhere);
}

void open_log(const Session& session, const std::filesystem::path& run_dir, const std::string& role, bool console) {
  const int rank = session.world.rank();
  on_all(session.world.group(), [&] {
    log::init({role, rank, console, (run_dir / "log" / fmt::format("rank-{:05d}.log", rank)).string()});
  });
}

bool told_to_stop(const Group& group) {
  return group.any(stop::requested());
}

int stopped_before_start(const Session& session) {
  if (session.is_root()) log::info("told to stop before the start; nothing was written");
  return static_cast<int>(Exit::requeue);
}

PipelineFolder open_pipeline(const Group& world, const std::string& path) {
  return on_all(world, [&] { return PipelineFolder::open(path); });
}

template <class Make>
static DataPlan broadcast_plan(const Group& world, const SourceConfig& source, Make&& make) {
  std::string bytes;
  on_root(world, [&] {
    const DataPlan plan = make();
    // The captions of classes are read with the source: now, while nothing is written yet.
    if (source.type == SourceConfig::Type::class_labels) make_source(source, plan.manifest, 1, /*index=*/"never");
    bytes = to_bytes(plan);
  });
  return data_plan_from_bytes(world.broadcast(bytes));
}

DataPlan broadcast_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch) {
  return broadcast_plan(world, source, [&] { return make_data_plan(source, data, global_batch); });
}

DataPlan broadcast_shares(const Group& world, const SourceConfig& source, const DataConfig& data) {
  return broadcast_plan(world, source, [&] { return make_shares(source, data, world.size()); });
}

std::vector<std::string> gpu_names(const Session& session) {
  return session.world.group().all_gather_strings(session.device.is_cuda() ? device_name(session.device) : "");
}

std::vector<RankOnHost> on_hosts(const Session& session, const std::vector<int>& ranks) {
  std::vector<RankOnHost> places;
  for (const int rank : ranks) places.push_back({rank, session.world.hosts()[static_cast<std::size_t>(rank)]});
  return places;
}

}  // namespace millrace
