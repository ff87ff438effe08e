#include "launch/session.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "launch/threads.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stop.h"
#include "millrace/nn/device.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {

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

// A GPU that does not start is this rank's own fault.
static torch::Device find_device(const std::string& word, int local_rank) try {
  return resolve_device(word, local_rank);
} catch (const Error& error) {
  if (error.exit() == Exit::suspect_node) fault::blame_this_rank();
  throw;
}

Session start_session(World& world, const std::string& device, const GuardConfig& guard,
                      const config::Auto<int>& wanted_threads) {
  log::init({.rank = world.rank(), .console = world.is_root(), .awaits_file = true});
  world.group().set_time_limit(phase::slow_factor * guard.hang_seconds() + watchdog_lead_seconds);
  const int threads = count_threads(world, wanted_threads);
  use_threads(threads);
  return {world, on_all(world.group(), [&] { return find_device(device, world.local_rank()); }), threads};
}

void choose_kernels(torch::Device device, bool deterministic, const config::Auto<bool>& fused) {
  if (deterministic && device.is_cuda()) compute_deterministically();
  if (fused.value) nn::use_fused_kernels(*fused.value ? nn::FusedKernels::everywhere : nn::FusedKernels::nowhere);
}

// "rank 17 of 48 on n2, process 4711: trainer of stripes 34-35, on AMD EPYC, 1 thread".
static std::string describe_rank(const Session& session, const std::string& work) {
  const auto& [world, device, threads] = session;
  const auto uuid = gpu_uuid(device);
  return fmt::format("rank {} of {} on {}, process {}: {}, on {}{}{}, {} thread{}", world.rank(), world.size(),
                     world.host(), ::getpid(), work, device_name(device), uuid.empty() ? "" : " ", uuid, threads,
                     threads == 1 ? "" : "s");
}

void open_log(const Session& session, const std::filesystem::path& run_dir, const std::string& role, bool console,
              const std::string& work) {
  const int rank = session.world.rank();
  on_all(session.world.group(), [&] {
    log::init({role, rank, console, (run_dir / run_file::log / (rank_name(rank) + ".log")).string()});
    log::debug("{}", describe_rank(session, work));  // which no console shows
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

std::vector<std::string> gpu_names(const Session& session) {
  return session.world.group().all_gather_strings(session.device.is_cuda() ? device_name(session.device) : "");
}

std::vector<RankOnHost> on_hosts(const Session& session, const std::vector<int>& ranks) {
  std::vector<RankOnHost> places;
  for (const int rank : ranks) places.push_back({rank, session.world.hosts()[static_cast<std::size_t>(rank)]});
  return places;
}

}  // namespace millrace
