#include "launch/gpu_sharing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "millrace/comm/fault.h"
#include "millrace/core/log.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {

std::vector<std::string> judge_shared_gpus(const std::vector<std::string>& uuids, const std::vector<int>& trainers) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < uuids.size(); ++rank)
    if (!uuids[rank].empty()) ranks_of[uuids[rank]].push_back(static_cast<int>(rank));
  std::vector<std::string> warnings;
  for (const auto& [uuid, ranks] : ranks_of) {
    const auto training =
        std::ranges::count_if(ranks, [&](int rank) { return std::ranges::count(trainers, rank) > 0; });
    if (training > 1)
      throw Error(
          Exit::usage,
          fmt::format("ranks {} use the same GPU, {}, and {} of them train", fmt::join(ranks, ", "), uuid, training),
          "start one trainer a GPU: as many ranks a node as it has GPUs, or roles.producers=N for ranks that "
          "only produce: these are the last ones, so that with several ranks a GPU nodes take ranks in turn (mpirun "
          "--map-by node, srun --distribution=cyclic); CUDA_VISIBLE_DEVICES must not show every rank the same GPU");
    if (ranks.size() > 1)
      warnings.push_back(fmt::format("ranks {} use the same GPU, {}: each is slower", fmt::join(ranks, ", "), uuid));
  }
  return warnings;
}

std::vector<int> odd_devices(const std::vector<std::string>& uuids, const std::vector<int>& trainers) {
  std::vector<int> on_gpus, on_cpus;
  for (const int rank : trainers) (uuids[static_cast<std::size_t>(rank)].empty() ? on_cpus : on_gpus).push_back(rank);
  return on_cpus.size() <= on_gpus.size() ? on_cpus : on_gpus;
}

GpuSharing judge_sharing(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts,
                         const std::vector<int>& trainers) {
  std::map<std::string, std::vector<int>> users;
  std::map<std::string, std::pair<int, int>> roles;  // trainers and others of each host
  for (int rank = 0; rank < static_cast<int>(uuids.size()); ++rank) {
    const auto place = static_cast<std::size_t>(rank);
    if (!uuids[place].empty()) users[uuids[place]].push_back(rank);
    auto& [training, others] = roles[hosts[place]];
    ++(std::ranges::count(trainers, rank) > 0 ? training : others);
  }
  const auto host_of = [&](const std::vector<int>& ranks) { return hosts[static_cast<std::size_t>(ranks.front())]; };
  std::map<std::string, std::size_t> most;  // of each host
  for (const auto& [uuid, ranks] : users) most[host_of(ranks)] = std::max(most[host_of(ranks)], ranks.size());
  std::map<std::pair<int, int>, std::size_t> least;  // of hosts with such roles
  for (const auto& [host, ranks] : most) {
    auto& of_kind = least.try_emplace(roles[host], ranks).first->second;
    of_kind = std::min(of_kind, ranks);
  }
  GpuSharing sharing;
  for (const auto& [uuid, ranks] : users) {
    sharing.ranks_per_gpu = std::max(sharing.ranks_per_gpu, static_cast<int>(ranks.size()));
    if (least[roles[host_of(ranks)]] == 1)
      for (std::size_t i = 1; i < ranks.size(); ++i) sharing.crowded.push_back({ranks[i], ranks.front()});
  }
  return sharing;
}

void suspect_nodes_of(const World& world, const std::vector<int>& ranks, const std::string& what,
                      const std::string& hint) {
  if (std::ranges::count(ranks, world.rank()) > 0) fault::blame_this_rank();
  std::vector<std::string> names;
  for (const int rank : ranks)
    names.push_back(fmt::format("rank {} on {}", rank, world.hosts()[static_cast<std::size_t>(rank)]));
  throw Error(Exit::suspect_node, fmt::format("{}: {}", what, fmt::join(names, ", ")), hint);
}

// Where most trainers have none, it is not the one with a GPU that is broken.
static void refuse_odd_devices(const World& world, const std::vector<int>& odd, const std::vector<std::string>& uuids) {
  if (odd.empty()) return;
  if (!uuids[static_cast<std::size_t>(odd.front())].empty())
    throw Error(Exit::usage, "some trainers have a GPU, and most have none",
                "`nvidia-smi` on the others tells whether theirs are gone; run.device=cpu trains on CPUs everywhere, "
                "roles.producers lets ranks without a GPU encode");
  suspect_nodes_of(
      world, odd, "some trainers have a GPU and others none; unlike the others",
      "`nvidia-smi` there tells whether its GPU is gone: leave that node out; run.device=cpu trains on CPUs "
      "everywhere, roles.producers lets ranks without a GPU encode");
}

static std::vector<std::string> refuse_shared_gpus(const World& world, const std::vector<std::string>& uuids,
                                                   const std::vector<int>& trainers) {
  const auto trains = [&](int rank) { return std::ranges::count(trainers, rank) > 0; };
  std::vector<int> suspects;
  std::set<std::string> crowded_hosts;
  for (const auto& [rank, with] : judge_sharing(uuids, world.hosts(), trainers).crowded) {
    if (trains(rank) && trains(with)) suspects.push_back(rank);
    crowded_hosts.insert(world.hosts()[static_cast<std::size_t>(rank)]);
  }
  if (!suspects.empty())
    suspect_nodes_of(world, suspects, "trainers share a GPU where other hosts with as many ranks have one for each",
                     "`nvidia-smi` there tells whether a GPU is gone: leave that node out");
  auto warnings = judge_shared_gpus(uuids, trainers);
  for (const auto& host : crowded_hosts)
    warnings.push_back(
        fmt::format("other hosts with as many ranks have more GPUs than {}, which may have lost one", host));
  return warnings;
}

void check_gpus(const Session& session, const std::vector<int>& trainers) {
  const auto& world = session.world;
  const auto uuids = world.group().all_gather_strings(gpu_uuid(session.device));
  const auto warnings = on_all(world.group(), [&] {
    refuse_odd_devices(world, odd_devices(uuids, trainers), uuids);
    return refuse_shared_gpus(world, uuids, trainers);
  });
  if (session.is_root())
    for (const auto& warning : warnings) log::warning("{}", warning);
}

}  // namespace millrace
