#include "launch/gpu_sharing.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

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

static void refuse_odd_devices(const std::vector<int>& odd, const std::vector<std::string>& hosts) {
  if (odd.empty()) return;
  std::vector<std::string> names;
  for (const int rank : odd) names.push_back(fmt::format("rank {} on {}", rank, hosts[static_cast<std::size_t>(rank)]));
  throw Error(Exit::usage,
              fmt::format("some trainers have a GPU and others none; unlike the others: {}", fmt::join(names, ", ")),
              "`nvidia-smi` there tells whether its GPU is gone: leave that node out; run.device=cpu trains on CPUs "
              "everywhere, roles.producers lets ranks without a GPU encode");
}

void check_gpus(const Session& session, const std::vector<int>& trainers) {
  const auto& world = session.world.group();
  const auto uuids = world.all_gather_strings(gpu_uuid(session.device));
  const auto warnings = on_all(world, [&] {
    refuse_odd_devices(odd_devices(uuids, trainers), session.world.hosts());
    return judge_shared_gpus(uuids, trainers);
  });
  if (session.is_root())
    for (const auto& warning : warnings) log::warning("{}", warning);
}

}  // namespace millrace
