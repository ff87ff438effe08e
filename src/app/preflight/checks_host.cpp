#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <set>

#include "command.h"
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

constexpr double short_seconds = 20;  // for what takes no time where nothing is wrong
// Numbers and messages depend on the builds of these; a driver may be another one on other nodes.
constexpr std::string_view must_be_equal[] = {"libtorch", "libc10", "libmpi", "libopen-", "libmillrace"};

// ---- program ------------------------------------------------------------------------------------------------------

json facts_of_program() {
  utsname names{};
  uname(&names);
  return {{"versions", fmt::format("millrace {} ({}), LibTorch {}, {}, glibc {}", MILLRACE_VERSION, MILLRACE_BUILD,
                                   TORCH_VERSION, mpi_version(), gnu_get_libc_version())},
          {"binary", hash_file("/proc/self/exe").hex()},
          {"libraries", loaded_libraries()},
          {"kernel", fmt::format("{} {}", names.sysname, names.release)}};
}

// Adds those that have another build of a library to the suspects, or to what is merely told.
void compare_libraries(const Checkup& checkup, const Answers& answers, Row& row) {
  const auto of_ranks = facts_of<std::map<std::string, std::string>>(answers, "libraries");
  std::map<std::string, Facts<std::string>> builds;  // plugins of Open MPI are loaded where there is hardware for them
  for (std::size_t i = 0; i < of_ranks.ranks.size(); ++i)
    for (const auto& [name, build] : of_ranks.values[i]) {
      builds[name].ranks.push_back(of_ranks.ranks[i]);
      builds[name].values.push_back(build);
    }
  for (const auto& [name, of_library] : builds) {
    const auto odd = odd_ones(of_library.values);
    if (odd.empty()) continue;
    if (std::ranges::any_of(must_be_equal, [&](auto begin) { return name.starts_with(begin); })) {
      for (const auto& one : odd)
        row.suspects.push_back({of_library.ranks[one.position], fmt::format("its {} is another build", name)});
    } else {
      row.detail += fmt::format("\n{} is another build on {} of {} ranks ({})", name, odd.size(),
                                of_library.ranks.size(), checkup.name(of_library.ranks[odd[0].position]));
    }
  }
}

std::string describe_difference(const std::string& own, const std::string& usual) {
  TrainConfig config;
  auto schema = config::Section::of(config);
  config::load_text(schema, own, "its configuration");
  std::vector<std::string> texts;
  for (const auto& change : config::diff(usual, config))
    texts.push_back(fmt::format("{} is {}, elsewhere {}", change.key, change.after, change.before));
  return fmt::format("its configuration differs: {}", fmt::join(texts, "; "));
}

Row judge_program(const Checkup& checkup, const Answers& answers) {
  const auto kernels = facts_of<std::string>(answers, "kernel"), versions = facts_of<std::string>(answers, "versions"),
             binaries = facts_of<std::string>(answers, "binary"), configs = facts_of<std::string>(answers, "config");
  Row row{.detail = fmt::format("{}, {}", versions.values[0],
                                fmt::join(std::set(kernels.values.begin(), kernels.values.end()), " and ")),
          .ends = true};
  for (const auto& odd : odd_ones(binaries.values))
    row.suspects.push_back({binaries.ranks[odd.position], "it runs another binary"});
  compare_libraries(checkup, answers, row);
  for (const auto& odd : odd_ones(configs.values))
    row.suspects.push_back({configs.ranks[odd.position], describe_difference(configs.values[odd.position], odd.usual)});
  if (row.suspects.empty() && answers.size() > 1)
    row.detail += fmt::format("\nbinary, LibTorch, MPI and configuration are the same on {} ranks", answers.size());
  return row;
}

// ---- machines -----------------------------------------------------------------------------------------------------

json facts_of_machine(const Session& session) {
  const auto device = session.device;
  json facts = {{"threads", session.threads},
                {"memory", node_memory_bytes()},
                {"available", free_node_memory_bytes()},
                {"device", device_name(device)},
                {"kind", device.is_cuda() ? "GPU" : "CPU"},
                {"uuid", ""}};
  if (device.is_cuda()) {
    const auto gpu = gpu_identity(device);
    facts["uuid"] = gpu.uuid;
    facts["free"] = gpu.free_bytes;
    facts["share"] = static_cast<double>(gpu.free_bytes) / static_cast<double>(gpu.total_bytes);
  }
  return facts;
}

Row judge_machines(const Checkup& checkup, const Answers& answers) {
  Row row{.detail = "", .ends = true};
  if (!failed_alone(answers).empty()) return row;
  const auto threads = facts_of<int>(answers, "threads");
  const int fewest = threads.least().value, most = threads.most().value;
  const auto available = facts_of<std::uint64_t>(answers, "available").least();
  row.detail = fmt::format("{} threads a rank, {} of memory available at the least ({}, which has {})",
                           fewest == most ? std::to_string(most) : fmt::format("{} to {}", fewest, most),
                           format_bytes(available.value), checkup.name(available.rank),
                           format_bytes(answers[available.rank].facts.at("memory").get<std::uint64_t>()));
  return row;
}

Row judge_devices(const Checkup& checkup, const Answers& answers, const Plan& plan) {
  const auto names = facts_of<std::string>(answers, "device").values,
             kinds = facts_of<std::string>(answers, "kind").values;
  const auto roles = plan.role_of_ranks();
  Row row;
  for (const std::string role : {"trainer", "producer"}) {
    std::map<std::string, int> counts;
    Facts<std::string> of_role;
    for (std::size_t rank = 0; rank < roles.size(); ++rank) {
      if (roles[rank] != role) continue;
      ++counts[names[rank]];
      of_role.ranks.push_back(static_cast<int>(rank));
      of_role.values.push_back(kinds[rank]);
    }
    for (const auto& odd : odd_ones(of_role.values))
      row.suspects.push_back({of_role.ranks[odd.position], fmt::format("it works on a {}, other {}s on a {}",
                                                                       of_role.values[odd.position], role, odd.usual)});
    for (const auto& [name, count] : counts)
      row.detail += fmt::format("{}{} x {}", row.detail.empty() ? "" : ", ", count, name) +
                    (plan.roles.all_in_one ? "" : fmt::format(" ({}s)", role));
  }
  const auto free = facts_of<std::uint64_t>(answers, "free");
  if (free.values.empty()) return row;
  const auto least = free.least();
  row.detail += fmt::format(", {} free at the least ({})", format_bytes(least.value), checkup.name(least.rank));
  std::vector<std::string> role_of_gpu;
  for (const int rank : free.ranks) role_of_gpu.push_back(roles[rank]);
  for (const auto i : far_below(facts_of<double>(answers, "share").values, role_of_gpu, 0.5))
    row.suspects.push_back(
        {free.ranks[i], fmt::format("only {} are free on its GPU: who else uses it?", format_bytes(free.values[i]))});
  const auto sharing = judge_sharing(facts_of<std::string>(answers, "uuid").values, checkup.hosts());
  if (sharing.ranks_per_gpu > 1)
    row.detail += fmt::format("; up to {} ranks share a GPU, which makes each slower", sharing.ranks_per_gpu);
  row.suspects.insert(row.suspects.end(), sharing.suspects.begin(), sharing.suspects.end());
  return row;
}

}  // namespace

std::vector<std::string> Plan::role_of_ranks() const {
  std::vector<std::string> names;
  for (int rank = 0; rank < session.world.size(); ++rank) names.push_back(trains(rank) ? "trainer" : "producer");
  return names;
}

Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line) {
  Loaded<TrainConfig> loaded;
  const auto work = [&] {
    loaded = load_config<TrainConfig>(
        line, [](const auto& c, auto& report) { check(c, report); }, checkup.is_root());
    auto facts = facts_of_program();
    facts["config"] = config::dump_yaml(loaded.root);
    return facts;
  };
  if (line.print_config) {
    checkup.ask("program", short_seconds, work);
  } else {
    checkup.check("program", short_seconds, work, [&](const auto& answers) { return judge_program(checkup, answers); });
  }
  return loaded;
}

Plan check_machines(Checkup& checkup, World& world, const TrainConfig& config) {
  Plan plan{.session = {world, torch::kCPU, 1}};
  auto& session = plan.session;
  Answers machines;
  checkup.check(
      "machines", short_seconds,
      [&] {
        session.threads = count_threads(world);
        at::set_num_threads(session.threads);
        session.device = resolve_device(config.run.device, world.local_rank());
        return facts_of_machine(session);
      },
      [&](const auto& answers) {
        machines = answers;
        return judge_machines(checkup, answers);
      });
  checkup.demand("devices", short_seconds, [&] {
    plan.roles = plan_roles(gpu_names(session), config.roles);
    return true;
  });
  checkup.conclude("devices", [&] { return judge_devices(checkup, machines, plan); });
  return plan;
}

}  // namespace millrace::preflight
