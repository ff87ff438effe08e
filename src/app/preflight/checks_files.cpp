#include <fmt/ranges.h>

#include <chrono>
#include <thread>

#include "millrace/checkpoint/reader.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "preflight/checks.h"
#include "run/disk_space.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double file_seconds = 45;
constexpr double plan_seconds = 120;    // rank 0 may have to count rows
constexpr double visible_seconds = 15;  // network file systems remember for a while that a name was not there

// Names and bytes of all files of the components, and of what the configuration has in their place.
json list_model(const TrainPlan& plan) {
  json files;
  for (const auto& [name, path] : plan.pipeline.components())
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file())
        files[fmt::format("{}/{}", name, fs::relative(entry.path(), path).string())] = entry.file_size();
  if (const auto& file = plan.config.model.unet.config) files["model.unet.config " + *file] = fs::file_size(*file);
  return files;
}

std::string describe_difference(const json& own_files, const json& usual_files) {
  std::vector<std::string> texts;
  for (const auto& change : json::diff(usual_files, own_files)) {
    const auto name = json::json_pointer(change.at("path").get<std::string>()).back();
    texts.push_back(change.at("op") == "remove" ? fmt::format("lacks {}", name)
                                                : fmt::format("has {}, {} bytes", name, change.at("value").dump()));
  }
  if (texts.size() > 3) texts.resize(3), texts.push_back("...");
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string content_of(const fs::path& file) {
  return fmt::format("{:.<65536}", file.filename().string());
}

// What another rank has written, as soon as it is there.
void read_back(const fs::path& file, const std::string& writer, const std::string& key) {
  const Stopwatch watch;
  std::error_code error;
  while (!fs::exists(file, error)) {
    if (watch.seconds() > visible_seconds)
      fail(Exit::io, "it does not see {}, which {} wrote {:.0f} s ago: is {} the same folder there?", file.string(),
           writer, visible_seconds, key);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (read_file(file) != content_of(file))
    fail(Exit::io, "it reads other bytes in {} than {} wrote", file.string(), writer);
}

// "12 ms (slowest: rank 2 on n1)".
std::string describe_slowest(const Answers& answers, const Checkup& checkup) {
  const auto slowest = most(facts_of<double>(answers, "seconds"));
  return fmt::format("{} (slowest: {})", describe_seconds(slowest.value), checkup.name(slowest.rank));
}

}  // namespace

void check_model_folder(Checkup& checkup, TrainPlan& plan) {
  const auto answers = checkup.ask("model folder", file_seconds, [&]() -> json {
    plan_model(plan);
    return {{"files", list_model(plan)}};
  });
  checkup.conclude([&] {
    const auto& path = plan.config.model.pipeline.value;
    Facts<std::string> lists;
    for (const auto& [rank, files] : facts_of<json>(answers, "files")) lists.push_back({rank, files.dump()});
    Row row{.detail = "", .ends = true};
    for (const auto& [rank, own, usual] : odd_ones(lists))
      row.suspect(rank, "{}: it {}", path, describe_difference(json::parse(own), json::parse(usual)));
    if (row.suspects.empty())
      row.detail = fmt::format("{}: {} files, the same names and sizes everywhere", path,
                               facts_of<json>(answers, "files")[0].value.size());
    return row;
  });
}

Group check_plan(Checkup& checkup, const Session& session, TrainPlan& plan, config::Report& report) {
  Group of_role;
  checkup.demand("plan", plan_seconds, [&] {
    plan_data(session, plan, report);
    of_role = session.world.group().split(plan.roles.trains(checkup.rank()) ? 0 : 1, checkup.rank());
    return true;
  });
  checkup.conclude(
      [&] { return Row{.detail = fmt::format("{}; {}", describe(plan.roles), describe(plan.input.data))}; });
  if (session.is_root())
    for (const auto& warning : plan.warnings) log::warning("{}", warning);
  return of_role;
}

void check_folder(Checkup& checkup, const char* name, const std::string& key, const fs::path& where,
                  ScratchFolder& scratch) {
  const auto made = checkup.ask(name, file_seconds, [&]() -> json {
    if (!checkup.is_root()) return nullptr;
    return scratch.make(key, where).filename().string();
  });
  const auto folder = where / made[0].facts.get<std::string>();
  const auto file_of = [&](int rank) { return folder / rank_name(rank); };
  const auto own = file_of(checkup.rank());
  const auto written = checkup.ask(name, file_seconds, [&] {
    write_file_atomically(own, content_of(own));
    return json::object();
  });
  if (!failed_alone(written).empty()) {
    scratch.remove();
    return checkup.conclude([] { return Row(); });
  }
  const auto ring = ring_over_hosts(checkup.hosts());
  const int writer = ring[(position_in(ring, checkup.rank()) + 1) % ring.size()];
  const auto seen = checkup.ask(name, file_seconds, [&] {
    read_back(file_of(writer), checkup.name(writer), key);
    return json::object();
  });
  scratch.remove();
  checkup.conclude([&] {
    return Row{.detail = fmt::format("written, fsynced and renamed in {}; read back {} in {}",
                                     describe_slowest(written, checkup), seen.size() == 1 ? "alone" : "by another rank",
                                     describe_slowest(seen, checkup))};
  });
}

void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t checkpoint_bytes) {
  const auto& run_dir = config.run.dir.value;
  const int keep = config.checkpoint.keep;
  const auto answers = checkup.ask("space", file_seconds, [&]() -> json {
    const auto there = list_checkpoints(run_dir);
    check_disk_space(config, checkpoint_bytes, {.step = there.empty() ? 0 : there.front().step});
    const auto space = fs::space(checkpoint_disk(run_dir));
    return {{"free", space.available}, {"disk", format_bytes(space.capacity)}};
  });
  checkup.conclude([&] {
    Row row{.detail = fmt::format("{} free{}", format_bytes(least(facts_of<std::uint64_t>(answers, "free")).value),
                                  config.checkpoint.every ? fmt::format(" for checkpoints of {}; checkpoint.keep={}",
                                                                        format_bytes(checkpoint_bytes), keep)
                                                          : ", no checkpoints")};
    for (const auto& [rank, own, usual] : odd_ones(facts_of<std::string>(answers, "disk")))
      row.suspect(rank, "run.dir is on a disk of {} there, of {} elsewhere", own, usual);
    return row;
  });
}

}  // namespace millrace::preflight
