#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "json_fields.h"
#include "run_events.h"
#include "sections.h"

namespace millrace {
namespace {

// "2 x NVIDIA H100 80GB HBM3 (trainer), 4 x NVIDIA A10G (producer)"
std::string devices_of(const RunRecord& run) {
  std::map<std::string, int> counts;
  for (const auto& rank : run.environment.value("ranks", nlohmann::json::array()))
    ++counts[fmt::format("{} ({})", text_of(rank, "device_name"), text_of(rank, "role"))];
  std::string text;
  for (const auto& [device, count] : counts) text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, device);
  return text;
}

// The distinct values of a key of the ranks, the first dozen of them.
std::string of_ranks(const RunRecord& run, const char* key) {
  constexpr std::size_t most = 12;
  std::set<std::string> values;
  for (const auto& rank : run.environment.value("ranks", nlohmann::json::array())) values.insert(text_of(rank, key));
  std::string text;
  std::size_t count = 0;
  for (const auto& value : values)
    if (count++ < most) text += (text.empty() ? "" : ", ") + value;
  return count > most ? fmt::format("{} and {} more", text, count - most) : text;
}

std::size_t rank_count(const RunRecord& run) {
  return run.environment.value("ranks", nlohmann::json::array()).size();
}

// Earlier versions wrote the time of the day where the run was.
std::string time_of(const Event& event) {
  return event.when.size() == 8 ? event.when + " (local)" : event.when;
}

// Paragraph and table of one run's events.
void add_events(Section& section, const RunRecord& run) {
  ReportTable table{{"UTC", ""}, {}};
  for (const auto& event : run.events)
    table.rows.push_back({time_of(event), event.count == 1 ? event.what
                                                           : fmt::format("{} ({} times, the last at {})", event.what,
                                                                         event.count, event.last)});
  if (table.rows.empty()) return;
  section.blocks.emplace_back(std::move(table));
  if (std::ranges::count(run.events, true, &Event::is_warning) >= static_cast<std::ptrdiff_t>(most_warnings))
    section.blocks.emplace_back(
        Paragraph{fmt::format("Of warnings the last {} kinds; {}/log has all.", most_warnings, run.folder.string())});
}

}  // namespace

Section events_section(Runs runs) {
  Section section{"Events", {}};
  for (const auto& run : runs) {
    if (runs.size() > 1 && !run.events.empty()) section.blocks.emplace_back(Paragraph{run.name});
    add_events(section, run);
  }
  if (section.blocks.empty()) section.blocks.emplace_back(Paragraph{"No starts, faults or warnings."});
  return section;
}

Section environment_section(Runs runs) {
  RunTable table(runs);
  const auto add = [&](const std::string& name, const TellRun& tell) {
    table.add(name, [&](const RunRecord& run) { return run.environment.is_object() ? tell(run) : std::string(); });
  };
  for (const char* key : {"time", "millrace", "program", "build"})
    add(key, [key](const RunRecord& run) { return for_people(text_of(run.environment, key)); });
  add("ranks", [](const RunRecord& run) { return fmt::format("{} on {}", rank_count(run), of_ranks(run, "host")); });
  add("devices", devices_of);
  add("threads a rank", [](const RunRecord& run) { return of_ranks(run, "threads"); });
  for (const char* key : {"processor", "memory", "GPUs", "system", "LibTorch", "CUDA", "MPI"})
    add(key, [key](const RunRecord& run) { return text_of(run.environment, key); });
  if (table.is_empty())
    return {"Environment",
            {Paragraph{"Not known: there is no environment.json, which earlier versions did not write."}}};
  return {"Environment", {Paragraph{"Of the newest start; rank 0's machine where machines differ."}, table.take()}};
}

namespace {

// Of one run what is not as in its template, or as by default where it had none.
Section compared_with_template(const RunRecord& run) {
  const bool has_template = !run.base.name.empty();
  const auto title = has_template ? fmt::format("Configuration: what is not as in {}", run.base.name)
                                  : std::string("Configuration: what is not the default");
  ReportTable table{{"", "this run", has_template ? "template" : "default"}, {}, /*names_are_code=*/true};
  for (const auto& [key, value] : run.settings) {
    const auto usual = run.base.settings.find(key);
    if (usual == run.base.settings.end() || usual->second != value)
      table.rows.push_back({key, value, usual == run.base.settings.end() ? "" : usual->second});
  }
  if (table.rows.empty()) return {title, {Paragraph{"Nothing."}}};
  return {title, {std::move(table)}};
}

// Of several runs what is not the same for all.
Section compared_with_each_other(Runs runs) {
  std::set<std::string> keys;
  for (const auto& run : runs)
    for (const auto& entry : run.settings)
      if (std::ranges::any_of(runs, [&](const auto& other) { return other.setting(entry.first) != entry.second; }))
        keys.insert(entry.first);
  RunTable table(runs);
  table.add("template", [](const RunRecord& run) { return run.base.name; });
  for (const auto& key : keys) table.add(key, [&](const RunRecord& run) { return run.setting(key); });
  if (table.is_empty()) return {"Configuration: what differs", {Paragraph{"Nothing."}}};
  auto settings = table.take();
  settings.names_are_code = true;
  return {"Configuration: what differs", {std::move(settings)}};
}

}  // namespace

Section configuration_section(Runs runs) {
  return runs.size() == 1 ? compared_with_template(runs[0]) : compared_with_each_other(runs);
}

}  // namespace millrace
