#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <algorithm>
#include <set>

#include "launch/gpu_sharing.h"
#include "launch/session.h"
#include "launch/threads.h"
#include "millrace/config/flatten.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/node_memory.h"
#include "millrace/core/secrets.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double short_seconds = 20;  // for what takes no time where nothing is wrong
constexpr double start_seconds = 90;  // for CUDA's start, which is slow where drivers do not stay loaded
// Numbers and messages depend on the builds of these; a driver may be another one on other nodes.
constexpr std::string_view must_be_equal[] = {"libtorch", "libc10", "libmpi", "libopen-", "libmillrace", "libnccl"};

// Adds a shared library of this process to `libraries`: name -> what tells its build.
int add_library(dl_phdr_info* library, std::size_t, void* libraries) {
  const fs::path path = library->dlpi_name;  // empty: the program; without a slash: the kernel's part
  if (!path.has_parent_path()) return 0;
  Hasher128 hasher;  // of notes, where the linker puts an id that it makes of the contents if it is asked to
  for (int i = 0; i < library->dlpi_phnum; ++i)
    if (const auto& part = library->dlpi_phdr[i]; part.p_type == PT_NOTE)
      hasher.update(reinterpret_cast<const void*>(library->dlpi_addr + part.p_vaddr), part.p_memsz);
  std::error_code error;
  const auto size = fs::file_size(path, error);
  auto& build = (*static_cast<json*>(libraries))[path.filename().string()];
  build = hasher.digest().hex().substr(0, 8) + "-" + std::to_string(error ? 0 : size);
  return 0;
}

json facts_of_program() {
  utsname names{};
  uname(&names);
  json libraries = json::object();
  dl_iterate_phdr(add_library, &libraries);
  return {{"versions",
           fmt::format("millrace {} ({}, CUDA {}), LibTorch {}, {}, glibc {}", MILLRACE_VERSION, MILLRACE_BUILD_TYPE,
                       built_with_cuda() ? "ON" : "OFF", TORCH_VERSION, mpi_version(), gnu_get_libc_version())},
          {"binary", hash_file("/proc/self/exe").hex()},
          {"libraries", libraries},
          {"kernel", fmt::format("{} {}", names.sysname, names.release)}};
}

// Adds those that have another build of a library to the suspects, or to what is merely told.
void compare_libraries(const Checkup& checkup, const Answers& answers, Row& row) {
  std::map<std::string, Facts<std::string>> builds;  // plugins of Open MPI are loaded where there is hardware for them
  for (const auto& [rank, libraries] : facts_of<std::map<std::string, std::string>>(answers, "libraries"))
    for (const auto& [name, build] : libraries) builds[name].push_back({rank, build});
  for (const auto& [name, of_ranks] : builds) {
    const auto odd = odd_ones(of_ranks);
    if (std::ranges::any_of(must_be_equal, [&](auto begin) { return name.starts_with(begin); })) {
      for (const auto& one : odd) row.suspect(one.rank, "its {} is another build", name);
    } else if (!odd.empty()) {
      row.detail += fmt::format("\n{} is another build on {} of {} ranks ({})", name, odd.size(), of_ranks.size(),
                                checkup.name(odd[0].rank));
    }
  }
}

// What must not differ between two ranks, a dotted key a line. The list of archives may be larger than a message: of a
// long value, or one with secrets, this has the beginning and a hash.
std::string brief_settings(const TrainConfig& config) {
  constexpr std::size_t longest = 200;
  std::string text;
  for (const auto& [key, value] : config::flatten(config::dump_yaml(config))) {
    if (is_of_the_node(key)) continue;
    const auto shown = without_secrets(value);  // first: half a secret is not known as one
    text += fmt::format("{}: {}", key, shown.substr(0, longest));
    if (shown.size() > longest || shown != value) text += fmt::format("... (hash {})", hash128(value).hex());
    text += '\n';
  }
  return text;
}

std::string describe_changes(const std::string& own, const std::string& usual) {
  const auto settings = config::flatten(own), of_others = config::flatten(usual);
  const auto value_in = [](const auto& some, const std::string& key) {
    const auto found = some.find(key);
    return found == some.end() ? std::string("(none)") : found->second;
  };
  auto all = settings;
  all.insert(of_others.begin(), of_others.end());
  std::vector<std::string> texts;
  for (const auto& [key, value] : all)
    if (value_in(settings, key) != value_in(of_others, key))
      texts.push_back(fmt::format("{} is {}, elsewhere {}", key, value_in(settings, key), value_in(of_others, key)));
  return fmt::format("{}", fmt::join(texts, "; "));
}

Row judge_program(const Checkup& checkup, const Answers& answers) {
  std::set<std::string> kernels;
  for (const auto& [rank, kernel] : facts_of<std::string>(answers, "kernel")) kernels.insert(kernel);
  Row row{
      .detail = fmt::format("{}, {}", facts_of<std::string>(answers, "versions")[0].value, fmt::join(kernels, " and ")),
      .ends = true};
  for (const auto& odd : odd_ones(facts_of<std::string>(answers, "binary")))
    row.suspect(odd.rank, "it runs another binary");
  compare_libraries(checkup, answers, row);
  for (const auto& [rank, own, usual] : odd_ones(facts_of<std::string>(answers, "config")))
    row.suspect(rank, "its configuration differs: {}", describe_changes(own, usual));
  if (row.suspects.empty() && answers.size() > 1)
    row.detail += fmt::format("\nbinary, LibTorch, MPI and configuration are the same on {} ranks", answers.size());
  return row;
}

json facts_of_machine(const Session& session) {
  const auto device = session.device;
  json facts = {{"threads", session.threads},
                {"memory", node_memory_bytes()},
                {"available", free_node_memory_bytes()},
                {"device", device_name(device)},
                {"kind", device.is_cuda() ? "GPU" : "CPU"}};
  if (!device.is_cuda()) return facts;
  const auto gpu = gpu_identity(device);
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    facts["lockable"] = static_cast<std::uint64_t>(locked.rlim_cur);
  facts["uuid"] = gpu.uuid;
  facts["free"] = gpu.free_bytes;
  facts["share"] = static_cast<double>(gpu.free_bytes) / static_cast<double>(gpu.total_bytes);
  return facts;
}

Row judge_machines(const Checkup& checkup, const Answers& answers) {
  const auto threads = facts_of<int>(answers, "threads");
  const int fewest = least(threads).value, greatest = most(threads).value;
  const auto available = least(facts_of<std::uint64_t>(answers, "available"));
  Row row{fmt::format("{} threads a rank, {} of memory available at the least ({}, which has {})",
                      fewest == greatest ? std::to_string(fewest) : fmt::format("{} to {}", fewest, greatest),
                      format_bytes(available.value), checkup.name(available.rank),
                      format_bytes(answers[available.rank].facts.at("memory").get<std::uint64_t>()))};
  if (const auto lockable = facts_of<std::uint64_t>(answers, "lockable"); !lockable.empty())
    row.detail += fmt::format("\n{} may lock {} of memory at the most: InfiniBand wants `ulimit -l unlimited`",
                              checkup.name(least(lockable).rank), format_bytes(least(lockable).value));
  return row;
}

}  // namespace

Row judge_devices(const Checkup& checkup, const Answers& answers, const Roles& roles) {
  Row row;
  std::map<std::pair<bool, std::string>, int> counts;  // trainers' devices, then producers'
  for (const auto& [rank, name] : facts_of<std::string>(answers, "device")) ++counts[{!roles.trains(rank), name}];
  for (const auto& [device, count] : counts)
    row.detail += fmt::format("{}{} x {}{}", row.detail.empty() ? "" : ", ", count, device.second,
                              roles.all_in_one ? ""
                              : device.first   ? " (producers)"
                                               : " (trainers)");
  for (const auto& [role, kinds] : by_role(facts_of<std::string>(answers, "kind"), roles))
    for (const auto& [rank, own, usual] : odd_ones(kinds))
      row.suspect(rank, "it works on a {}, other {}s on a {}", own, role, usual);
  const auto has_gpu = [&](int rank) { return answers[rank].facts.contains("uuid"); };
  const auto on_gpus = std::ranges::count_if(roles.trainers, has_gpu);
  row.ends = on_gpus > 0 && on_gpus < static_cast<std::ptrdiff_t>(roles.trainers.size());  // they cannot meet
  const auto free = facts_of<std::uint64_t>(answers, "free");
  if (free.empty()) return row;
  row.detail +=
      fmt::format(", {} free at the least ({})", format_bytes(least(free).value), checkup.name(least(free).rank));
  for (const auto& [role, shares] : by_role(facts_of<double>(answers, "share"), roles))
    for (const auto& [rank, share] : far_below(shares, 0.5))
      row.suspect(rank, "only {} are free on its GPU: who else uses it?",
                  format_bytes(answers[rank].facts.at("free").get<std::uint64_t>()));
  std::vector<std::string> uuids;
  for (const auto& answer : answers) uuids.push_back(answer.facts.value("uuid", ""));
  const auto sharing = judge_sharing(uuids, checkup.hosts(), roles.trainers);
  if (sharing.ranks_per_gpu > 1)
    row.detail += fmt::format("; up to {} ranks share a GPU, which makes each slower", sharing.ranks_per_gpu);
  for (const auto& [rank, with] : sharing.crowded) row.suspect(rank, "it uses the same GPU as rank {}", with);
  try {
    judge_shared_gpus(uuids, roles.trainers);  // what `train` refuses is refused here, too
  } catch (const Error&) {
    if (sharing.crowded.empty()) throw;
    row.ends = true;  // and here it is known who is odd
  }
  return row;
}

Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line) {
  Loaded<TrainConfig> loaded;
  const auto answers = checkup.ask("program", short_seconds, [&] {
    loaded = load_config<TrainConfig>(
        line, [](const auto& c, auto& report) { check(c, report); }, checkup.is_root());
    auto facts = facts_of_program();
    facts["config"] = brief_settings(loaded.root);
    return facts;
  });
  if (!line.print_config) checkup.conclude([&] { return judge_program(checkup, answers); });
  return loaded;
}

void check_machines(Checkup& checkup, Session& session, TrainPlan& plan) {
  const auto machines = checkup.demand("machines", start_seconds, [&] {
    session.threads = count_threads(session.world, plan.config.threads);
    use_threads(session.threads);
    session.device = resolve_device(plan.config.run.device, session.world.local_rank());
    choose_kernels(session.device, plan.config.run.deterministic, plan.config.model.fused_kernels);
    return facts_of_machine(session);
  });
  checkup.conclude([&] { return judge_machines(checkup, machines); });
  checkup.demand("devices", short_seconds, [&] {
    plan_roles(session, plan);
    return true;
  });
  checkup.conclude([&] { return judge_devices(checkup, machines, plan.roles); });
}

}  // namespace millrace::preflight
