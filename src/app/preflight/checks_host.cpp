#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "command.h"
#include "millrace/comm/agree.h"
#include "millrace/core/clock.h"
#include "millrace/core/files.h"
#include "millrace/core/node_memory.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"
#include "preflight/checks.h"
#include "preflight/loaded_libraries.h"
#include "run/threads.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double short_seconds = 30;       // for what takes no time where nothing is wrong
constexpr double clock_limit_seconds = 2;  // leases, signals before a job's end and dates of files bear no more

std::string kernel() {
  utsname names{};
  uname(&names);
  return fmt::format("{} {}", names.sysname, names.release);
}

json facts_of_program() {
  return {{"versions", fmt::format("millrace {} ({}), LibTorch {}, {}, glibc {}", MILLRACE_VERSION, MILLRACE_BUILD,
                                   TORCH_VERSION, mpi_version(), gnu_get_libc_version())},
          {"binary", hash_file("/proc/self/exe").hex()},
          {"libraries", loaded_libraries()},
          {"kernel", kernel()}};
}

// Adds ranks whose `key` differs, with the text that `describe` makes of their value and the usual one.
template <class Describe>
void compare(const std::vector<Answer>& answers, const char* key, std::vector<Suspicion>& suspects, Describe describe) {
  std::vector<int> ranks;
  const auto values = facts_of<std::string>(answers, key, ranks);
  std::string usual;
  for (const auto i : odd_ones(values, usual)) suspects.push_back({ranks[i], describe(values[i], usual)});
}

void compare_libraries(const std::vector<Answer>& answers, std::vector<Suspicion>& suspects) {
  std::vector<int> ranks;
  using Libraries = std::map<std::string, std::string>;
  const auto of_rank = facts_of<Libraries>(answers, "libraries", ranks);
  std::set<std::string> names;
  for (const auto& libraries : of_rank)
    for (const auto& [name, identity] : libraries) names.insert(name);
  for (const auto& name : names) {
    std::vector<std::string> identities;
    std::vector<int> having;  // plugins of Open MPI are loaded where there is hardware for them
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      if (!of_rank[i].contains(name)) continue;
      identities.push_back(of_rank[i].at(name));
      having.push_back(ranks[i]);
    }
    std::string usual;
    for (const auto i : odd_ones(identities, usual))
      suspects.push_back({having[i], fmt::format("its {} is another build", name)});
  }
}

void compare_configurations(const std::vector<Answer>& answers, std::vector<Suspicion>& suspects) {
  compare(answers, "config", suspects, [](const std::string& own, const std::string& usual) {
    TrainConfig config;
    auto schema = config::Section::of(config);
    config::load_text(schema, own, "its configuration");
    std::vector<std::string> texts;
    for (const auto& change : config::diff(usual, config))
      texts.push_back(fmt::format("{} is {}, elsewhere {}", change.key, change.after, change.before));
    return fmt::format("its configuration differs: {}", fmt::join(texts, "; "));
  });
}

std::string summary(const std::vector<Answer>& answers) {
  std::vector<int> ranks;
  const auto kernels = facts_of<std::string>(answers, "kernel", ranks);
  const std::set<std::string> different(kernels.begin(), kernels.end());
  return fmt::format("{}, {}{}", answers[0].facts.at("versions").get<std::string>(), fmt::join(different, " and "),
                     ranks.size() == 1
                         ? ""
                         : fmt::format("\nbinary, {} libraries and configuration are the same on {} ranks",
                                       answers[0].facts.at("libraries").size(), ranks.size()));
}

// Bytes; 0 when the kernel does not tell.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word)
    if (std::uint64_t kib = 0; word == "MemAvailable:" && file >> kib) return kib * 1024;
  return 0;
}

json facts_of_machine(const Session& session) {
  json facts = {{"threads", session.threads},
                {"memory", node_memory_bytes()},
                {"available", available_memory()},
                {"device", device_name(session.device)},
                {"type", session.device.is_cuda() ? "GPU" : "CPU"},
                {"uuid", ""},
                {"free", 0.0}};
  if (session.device.is_cuda()) {
    const auto gpu = gpu_identity(session.device);
    facts["uuid"] = gpu.uuid;
    facts["free"] = static_cast<double>(gpu.free_bytes);
    facts["total"] = gpu.total_bytes;
  }
  return facts;
}

// The least value, and whose it is.
std::pair<std::uint64_t, int> least_of(const std::vector<Answer>& answers, const char* key) {
  std::vector<int> ranks;
  const auto values = facts_of<std::uint64_t>(answers, key, ranks);
  const auto least = std::ranges::min_element(values);
  return {*least, ranks[static_cast<std::size_t>(least - values.begin())]};
}

std::vector<std::string> role_of_ranks(const Roles& roles, int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(roles.trains(rank) ? "trainer" : "producer");
  return names;
}

Row judge_threads(const Checkup& checkup, const std::vector<Answer>& answers) {
  std::vector<int> ranks;
  const auto threads = facts_of<int>(answers, "threads", ranks);
  const auto [fewest, most] = std::ranges::minmax(threads);
  const auto [available, where] = least_of(answers, "available");
  return {.detail = fmt::format("{} threads a rank, {} of memory available at the least ({}, which has {})",
                                fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most),
                                format_bytes(available), checkup.name(where),
                                format_bytes(answers[where].facts.at("memory").get<std::uint64_t>())),
          .suspects = {}};
}

Row judge_devices(const Checkup& checkup, const std::vector<Answer>& answers, const Roles& roles) {
  std::vector<int> ranks;
  const auto names = facts_of<std::string>(answers, "device", ranks),
             types = facts_of<std::string>(answers, "type", ranks),
             uuids = facts_of<std::string>(answers, "uuid", ranks);
  const auto free = facts_of<double>(answers, "free", ranks);
  auto kinds = role_of_ranks(roles, static_cast<int>(ranks.size()));
  Row row;
  for (const std::string role : {"trainer", "producer"}) {
    std::map<std::string, int> counts;
    std::vector<std::string> of_role;
    std::vector<int> with_role;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (kinds[i] != role) continue;
      ++counts[names[i]];
      of_role.push_back(types[i]);
      with_role.push_back(ranks[i]);
    }
    std::string usual;
    for (const auto i : odd_ones(of_role, usual))
      row.suspects.push_back(
          {with_role[i], fmt::format("it works on a {}, the other {}s on a {}", of_role[i], role, usual)});
    for (const auto& [name, count] : counts)
      row.detail += fmt::format("{}{} x {}", row.detail.empty() ? "" : ", ", count, name) +
                    (roles.all_in_one ? "" : fmt::format(" ({}s)", role));
  }
  for (const auto i : far_below(free, kinds, 0.5))
    row.suspects.push_back({ranks[i], fmt::format("only {} are free on its GPU: who else uses it?",
                                                  format_bytes(static_cast<std::uint64_t>(free[i])))});
  if (types[0] == "CPU") return row;
  const auto least = std::ranges::min_element(free);
  row.detail += fmt::format(", {} free at the least ({})", format_bytes(static_cast<std::uint64_t>(*least)),
                            checkup.name(ranks[static_cast<std::size_t>(least - free.begin())]));
  return row;
}

// One node with fewer GPUs than ranks has lost one; if all are like that, too many ranks were started.
void judge_shared_gpus(const Checkup& checkup, const std::vector<Answer>& answers, Row& row) {
  std::vector<int> ranks;
  const auto uuids = facts_of<std::string>(answers, "uuid", ranks);
  const auto& hosts = checkup.world().hosts();
  const auto shared = shared_gpus(uuids, hosts);
  std::set<std::string> sharing, all(hosts.begin(), hosts.end());
  for (const auto& gpu : shared) sharing.insert(gpu.host);
  if (!shared.empty() && sharing == all)
    throw Error(Exit::usage,
                fmt::format("{} uses the same GPU as rank {}", checkup.name(shared[0].rank), shared[0].first),
                "start one rank per GPU, with all GPUs of the node visible to each");
  for (const auto& gpu : shared)
    row.suspects.push_back({gpu.rank, fmt::format("it uses the same GPU as rank {}", gpu.first)});
}

}  // namespace

Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line) {
  Loaded<TrainConfig> loaded;
  const auto answers = checkup.ask("program", short_seconds, [&] {
    loaded = load_config<TrainConfig>(
        line, [](const auto& c, auto& report) { check(c, report); }, checkup.is_root());
    auto facts = facts_of_program();
    facts["config"] = config::dump_yaml(loaded.root);
    return facts;
  });
  Row row;
  if (checkup.is_root()) {
    row.suspects = failed_alone(answers);
    compare(answers, "binary", row.suspects, [](const auto&, const auto&) { return "it runs another binary"; });
    compare_libraries(answers, row.suspects);
    compare_configurations(answers, row.suspects);
    row.ends = true;
    row.detail = row.suspects.empty() ? summary(answers) : "";
  }
  if (!line.print_config) checkup.conclude("program", row);
  return loaded;
}

void check_clocks(Checkup& checkup) {
  if (checkup.world().size() == 1) return checkup.skip("clocks", "one rank");
  constexpr int tries = 8;
  const auto& group = checkup.group();
  std::vector<double> offsets(static_cast<std::size_t>(group.size()));
  const auto answers = checkup.ask("clocks", short_seconds, [&]() -> json {
    double theirs = 0;
    const auto bytes = std::as_writable_bytes(std::span(&theirs, 1));
    if (group.rank() != 0) {
      for (int i = 0; i < tries; ++i) {
        receive(group, 0, bytes, checkup.seconds_left());
        theirs = unix_seconds();
        send(group, 0, bytes, checkup.seconds_left());
      }
      return true;
    }
    for (int rank = 1; rank < group.size(); ++rank) {
      double shortest = short_seconds;
      for (int i = 0; i < tries; ++i) {
        const double asked = unix_seconds();
        const Stopwatch watch;
        send(group, rank, bytes, checkup.seconds_left());
        receive(group, rank, bytes, checkup.seconds_left());
        const double passed = watch.seconds();
        if (passed < shortest) offsets[rank] = theirs - (asked + passed / 2);
        shortest = std::min(shortest, passed);
      }
    }
    return true;
  });
  Row row;
  if (checkup.is_root()) {
    row.suspects = failed_alone(answers);
    row.ends = !row.suspects.empty();
    if (row.suspects.empty()) row.suspects = judge_clocks(offsets, clock_limit_seconds);
    const auto furthest = std::ranges::max_element(offsets, {}, [](double offset) { return std::abs(offset); });
    row.detail = fmt::format("at most {} from that of rank 0 ({})", describe_seconds(std::abs(*furthest)),
                             checkup.name(static_cast<int>(furthest - offsets.begin())));
  }
  checkup.conclude("clocks", row);
}

Machines check_machines(Checkup& checkup, World& world, const TrainConfig& config) {
  Session session{world, torch::kCPU, 1};
  const auto answers = checkup.ask("machines", short_seconds, [&] {
    session.threads = count_threads(world);
    at::set_num_threads(session.threads);
    session.device = resolve_device(config.run.device, world.local_rank());
    return facts_of_machine(session);
  });
  Row threads;
  if (checkup.is_root()) {
    threads.suspects = failed_alone(answers);
    threads.ends = true;
    if (threads.suspects.empty()) threads = judge_threads(checkup, answers);
  }
  checkup.conclude("machines", threads);

  Roles roles;
  Row devices;
  checkup.ask("devices", short_seconds, [&] {
    roles = plan_roles(gpu_names(session), config.roles);
    return true;
  });
  on_root(checkup.group(), [&] {
    devices = judge_devices(checkup, answers, roles);
    judge_shared_gpus(checkup, answers, devices);
  });
  checkup.conclude("devices", devices);
  return {session, roles};
}

}  // namespace millrace::preflight
