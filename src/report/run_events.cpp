#include "run_events.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

constexpr std::size_t longest_text = 2000;
constexpr double end_of_dates = 253402300800;  // the year 10000, in seconds since 1970

bool has_date(const Event& event) {
  return event.when.size() > 10 && event.when[4] == '-';
}

std::optional<Event> read_fault(const std::filesystem::path& file) try {
  const auto fault = parse_python_json(read_file(file), file.string());
  if (!fault.is_object()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto value = fault.find(key);
    return value == fault.end() ? std::string() : value->is_string() ? value->get<std::string>() : value->dump();
  };
  const auto time = fault.find("time");
  const double seconds = time != fault.end() && time->is_number() ? time->get<double>() : -1;
  const bool is_date = 0 <= seconds && seconds < end_of_dates;
  return Event{is_date ? fmt::format("{:%F %T}", fmt::gmtime(static_cast<std::time_t>(seconds))) : "",
               fmt::format("rank {} on {} left in {}, step {}: {}", text("rank"), text("host"), text("phase"),
                           text("step"), text("reason"))};
} catch (const Error&) {  // a new start removes the file
  return std::nullopt;
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

bool is_a_start_or_a_step_back(std::string_view words) {
  return words.find(" started in ") != words.npos || words.find(" going back to ") != words.npos;
}

// Collects events line by line; complaints of one kind become one.
class Events {
 public:
  void add(Event event, bool may_repeat) {
    event.what.resize(std::min(event.what.size(), longest_text));
    if (may_repeat) {
      const auto [found, is_new] = by_kind_.try_emplace(kind_of(event.what), events_.size());
      if (!is_new) {
        auto& first = events_[found->second];
        ++first.count;
        first.last = event.when;
        first.what = std::move(event.what);
        lines_[found->second] = line_++;
        return;
      }
    }
    events_.push_back(std::move(event));
    lines_.push_back(line_++);
  }

  // Without the kinds of warnings that came last a long time ago.
  std::vector<Event> take() {
    std::vector<std::size_t> lines;
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (events_[i].is_warning) lines.push_back(lines_[i]);
    std::ranges::sort(lines, std::greater());
    const std::size_t oldest = lines.size() > most_warnings ? lines[most_warnings - 1] : 0;
    std::vector<Event> taken;
    for (std::size_t i = 0; i < events_.size(); ++i)
      if (!events_[i].is_warning || lines_[i] >= oldest) taken.push_back(std::move(events_[i]));
    return taken;
  }

 private:
  std::vector<Event> events_;
  std::vector<std::size_t> lines_;  // of each, that of the last time
  std::size_t line_ = 0;
  std::unordered_map<std::string, std::size_t> by_kind_;
};

// Calls `take` with the lines of starts, steps back, errors and warnings:
// "2026-11-24T20:13:23Z warning trainer/0 step 7 ...".
template <class Take>
void read_log(const std::filesystem::path& path, Take&& take) {
  std::ifstream log(path);
  for (std::string line; std::getline(log, line);) {
    const auto space = line.find(' ');
    if (space == line.npos) continue;
    const auto rest = std::string_view(line).substr(space + 1);
    const bool is_warning = rest.starts_with("warning ");
    if (!is_warning && !rest.starts_with("error ") && !is_a_start_or_a_step_back(rest)) continue;
    Event event{for_people(line.substr(0, space)), std::string(rest.substr(0, longest_text))};
    event.is_warning = is_warning && !is_a_start_or_a_step_back(rest);
    take(std::move(event));
  }
}

std::filesystem::path log_of(const RunRecord& run, std::int64_t rank) {
  return run.folder / run_file::log / (rank_name(rank) + ".log");
}

// Who tells of the steps, by the newest start; nothing where that is rank 0.
std::optional<std::filesystem::path> log_of_first_trainer(const RunRecord& run) {
  const auto ranks = run.environment.is_object() ? run.environment.find("ranks") : run.environment.end();
  if (ranks == run.environment.end() || !ranks->is_array()) return std::nullopt;
  for (const auto& rank : *ranks) {
    if (!rank.is_object() || !rank.contains("role") || !rank.contains("rank")) continue;
    const auto &role = rank["role"], &number = rank["rank"];
    if (!role.is_string() || !number.is_number_unsigned() || role == "producer") continue;
    if (number > 0) return log_of(run, number.get<std::int64_t>());
    break;
  }
  return std::nullopt;
}

std::string date_of(const Event& event) {
  return has_date(event) ? event.when : std::string();
}

// Minute and words of a line, without "error ROLE/RANK step N": of what all ranks agreed on the same in each log.
std::string minute_and_words(const Event& event) {
  static const std::regex prefix(R"(^\w+ \S+ (step \d+ )?)");
  std::smatch match;
  return event.when.substr(0, 16) + (std::regex_search(event.what, match, prefix) ? match.suffix().str() : event.what);
}

// By date, without what both tell.
std::vector<Event> merge_logs(const std::filesystem::path& first, const std::filesystem::path& second) {
  std::vector<Event> lines;
  std::set<std::string> told;
  read_log(first, [&](Event line) {
    told.insert(minute_and_words(line));
    lines.push_back(std::move(line));
  });
  read_log(second, [&](Event line) {
    if (!told.contains(minute_and_words(line))) lines.push_back(std::move(line));
  });
  std::ranges::stable_sort(lines, {}, date_of);
  return lines;
}

}  // namespace

std::string for_people(const std::string& utc) {
  if (utc.size() != 20 || utc[10] != 'T' || utc.back() != 'Z') return utc;
  return utc.substr(0, 10) + " " + utc.substr(11, 8);
}

std::vector<Event> read_events(const RunRecord& run) {
  Events events;
  const auto add = [&](Event line) {
    const bool may_repeat = !is_a_start_or_a_step_back(line.what);
    events.add(std::move(line), may_repeat);
  };
  if (const auto trainers = log_of_first_trainer(run))
    std::ranges::for_each(merge_logs(log_of(run, 0), *trainers), add);
  else
    read_log(log_of(run, 0), add);
  if (const auto faults = run.folder / run_file::fault; std::filesystem::is_directory(faults))
    for (const auto& entry : std::filesystem::directory_iterator(faults))
      if (auto fault = read_fault(entry.path())) events.add(std::move(*fault), /*may_repeat=*/false);
  auto all = events.take();
  std::ranges::stable_sort(all, {}, date_of);
  return all;
}

}  // namespace millrace
