#include "run_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "json_fields.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

constexpr std::size_t longest_text = 2000;
constexpr std::size_t most_kinds = 2000;       // of complaints, while logs are read
constexpr std::size_t most_lines = 1 << 20;    // of which it is known who told them
constexpr double end_of_dates = 253402300800;  // the year 10000, in seconds since 1970

// Nothing for the times of the day that earlier versions wrote.
std::string date_of(const std::string& when) {
  return when.size() > 10 && when[4] == '-' ? when : std::string();
}

// By name; none where there is no such folder.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error, unknown;
  for (const auto& entry : list_folder(folder, error))
    if (entry.is_regular_file(unknown)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

// Null where it is broken, or a new start removes it meanwhile.
nlohmann::json read_fault(const fs::path& file) try {
  return parse_python_json(read_file(file), file.string());
} catch (const Error&) {
  return nullptr;
}

Event event_of_fault(const nlohmann::json& fault) {
  const auto time = time_of_fault(fault);
  return {time ? for_people(utc_of(static_cast<std::time_t>(*time))) : "",
          fmt::format("rank {} on {} left in {}, step {}: {}", text_of(fault, "rank"), text_of(fault, "host"),
                      text_of(fault, "phase"), text_of(fault, "step"), text_of(fault, "reason"))};
}

// What a line complains of: its words without those that tell one case from another, which are numbers, paths and
// samples' ids.
std::string kind_of(const std::string& text) {
  std::istringstream words(text);
  std::string kind;
  bool was_name = false;
  for (std::string word; words >> word;) {
    const bool is_name = word.find_first_of("0123456789/") != word.npos || word == "nan" || word == "inf";
    if (!is_name) kind += word + ' ';
    if (is_name && !was_name) kind += "# ";
    was_name = is_name;
  }
  return kind;
}

bool is_a_start_stop_or_step_back(std::string_view words) {
  constexpr std::string_view turns[] = {" started in ", " stopped by ", " going back to "};
  return std::ranges::any_of(turns, [&](std::string_view said) { return words.find(said) != words.npos; });
}

// Collects events of any number of logs in little memory: complaints of one kind become one.
class Events {
 public:
  void add(Event event, std::string kind = "") {
    event.what.resize(std::min(event.what.size(), longest_text));
    held_.push_back({std::move(event), std::move(kind), line_++});
  }

  void add_complaint(Event event) {
    auto kind = kind_of(event.what);
    const auto [found, is_new] = by_kind_.try_emplace(kind, held_.size());
    if (!is_new) return repeat(held_[found->second], std::move(event));
    add(std::move(event), std::move(kind));
    if (by_kind_.size() <= most_kinds) return;
    for (const bool warnings : {true, false}) keep_newest(warnings, most_kinds / 4);
  }

  // Without the kinds of warnings that came last a long time ago.
  std::vector<Event> take() {
    keep_newest(/*warnings=*/true, most_warnings);
    std::vector<Event> taken;
    for (auto& held : held_) taken.push_back(std::move(held.event));
    return taken;
  }

 private:
  struct Held {
    Event event;
    std::string kind;  // of complaints
    std::size_t line;  // of the last time

    auto last() const { return std::pair(date_of(event.count == 1 ? event.when : event.last), line); }
  };

  // Logs are read one behind the other: what comes later may have been before.
  void repeat(Held& held, Event again) {
    auto& event = held.event;
    if (event.count++ == 1) event.last = event.when;
    held.line = line_++;
    if (date_of(again.when) >= date_of(event.last)) event.last = again.when;
    if (date_of(again.when) >= date_of(event.when)) return;
    event.when = std::move(again.when);
    event.what = std::move(again.what);
  }

  // Of the warnings, or the errors, the kinds that came last.
  void keep_newest(bool warnings, std::size_t most) {
    const auto is_one = [&](const Held& held) { return !held.kind.empty() && held.event.is_warning == warnings; };
    std::vector<std::pair<std::string, std::size_t>> times;
    for (const auto& held : held_)
      if (is_one(held)) times.push_back(held.last());
    if (times.size() <= most) return;
    std::ranges::sort(times, std::greater());
    std::erase_if(held_, [&](const Held& held) { return is_one(held) && held.last() < times[most - 1]; });
    by_kind_.clear();
    for (std::size_t i = 0; i < held_.size(); ++i)
      if (!held_[i].kind.empty()) by_kind_[held_[i].kind] = i;
  }

  std::vector<Held> held_;
  std::size_t line_ = 0;
  std::unordered_map<std::string, std::size_t> by_kind_;
};

// Minute and words of a line, without "error ROLE/RANK step N": of what all ranks agreed on the same in each log.
std::string minute_and_words(const Event& event) {
  std::string_view words = event.what;
  for (int i = 0; i < 2; ++i) take_until(words, ' ');
  if (words.starts_with("step "))
    for (int i = 0; i < 2; ++i) take_until(words, ' ');
  return event.when.substr(0, 16) + ' ' + std::string(words);
}

// Who told what first, of as many lines as memory may be spent on; of more than that each counts.
class Tellers {
 public:
  // Whether no log before `log` has told it.
  bool are_new(const Event& line, std::size_t log) {
    const auto hash = std::hash<std::string>()(minute_and_words(line));
    if (const auto found = first_.find(hash); found != first_.end()) return found->second == log;
    if (first_.size() < most_lines) first_.emplace(hash, log);
    return true;
  }

 private:
  std::unordered_map<std::size_t, std::size_t> first_;
};

// Calls take(line, whether it is one of these) with starts, stops, steps back, errors and warnings:
// "2026-11-24T20:13:23Z warning trainer/0 step 7 ...".
template <class Take>
void read_log(const fs::path& path, Take&& take) {
  std::ifstream log(path);
  for (std::string line; std::getline(log, line);) {
    const auto space = line.find(' ');
    if (space == line.npos) continue;
    const auto rest = std::string_view(line).substr(space + 1);
    if (rest.starts_with("debug ")) continue;  // has names of samples, which may be any words
    const bool is_warning = rest.starts_with("warning "), is_turn = is_a_start_stop_or_step_back(rest);
    if (!is_warning && !rest.starts_with("error ") && !is_turn) continue;
    Event event{for_people(line.substr(0, space)), std::string(rest.substr(0, longest_text))};
    event.is_warning = is_warning && !is_turn;
    take(std::move(event), is_turn);
  }
}

// What several logs tell in the same minute with the same words is one event.
void add_logs(Events& events, const fs::path& folder) {
  Tellers tellers;
  std::size_t log = 0;
  for (const auto& file : files_in(folder)) {
    const auto name = file.filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".log")) continue;
    read_log(file, [&](Event line, bool is_turn) {
      if (!tellers.are_new(line, log)) return;
      is_turn ? events.add(std::move(line)) : events.add_complaint(std::move(line));
    });
    ++log;
  }
}

// A start that was killed leaves in RUN/fault what its line of starts.jsonl has, and the one behind it has that again.
void add_faults(Events& events, const RunRecord& run) {
  constexpr std::size_t enough = 200;  // bytes: starts.jsonl has no long reasons in full
  std::set<std::string> told;
  const auto add = [&](const nlohmann::json& fault) {
    if (!fault.is_object()) return;
    auto event = event_of_fault(fault);
    if (told.insert(event.when + event.what.substr(0, enough)).second) events.add(std::move(event));
  };
  for (const auto& start : run.starts)
    for (const auto& fault : faults_before(start)) add(fault);
  for (const auto& file : files_in(run.folder / run_file::fault)) add(read_fault(file));
}

}  // namespace

std::string for_people(const std::string& utc) {
  if (utc.size() != 20 || utc[10] != 'T' || utc.back() != 'Z') return utc;
  return utc.substr(0, 10) + " " + utc.substr(11, 8);
}

nlohmann::json faults_before(const nlohmann::json& start) {
  const auto before = start.value("before", nlohmann::json());
  auto faults = before.is_object() ? before.value("faults", nlohmann::json()) : nlohmann::json();
  return faults.is_array() ? faults : nlohmann::json::array();
}

std::optional<double> time_of_fault(const nlohmann::json& fault) {
  const auto seconds = number_in(fault, "time");
  return seconds && 0 <= *seconds && *seconds < end_of_dates ? seconds : std::nullopt;
}

std::vector<Event> read_events(const RunRecord& run) {
  Events events;
  add_logs(events, run.folder / run_file::log);
  add_faults(events, run);
  auto all = events.take();
  std::ranges::stable_sort(all, {}, [](const Event& event) { return date_of(event.when); });
  return all;
}

}  // namespace millrace
