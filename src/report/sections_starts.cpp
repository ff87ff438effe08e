#include <fmt/format.h>

#include <algorithm>
#include <boost/icl/interval_set.hpp>
#include <cstdint>
#include <ctime>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "json_fields.h"
#include "millrace/core/clock.h"
#include "millrace/core/run_files.h"
#include "millrace/core/run_status.h"
#include "millrace/core/units.h"
#include "run_events.h"
#include "sections.h"

namespace millrace {
namespace {

constexpr std::size_t most_lives = 100;                                              // in a table
constexpr std::size_t longest_end = 200, longest_value = 60, longest_changes = 400;  // bytes

// From a start to its end. The next start has written down how that was; STATE tells it of the newest.
struct Life {
  std::optional<double> began, ended;  // seconds since 1970
  std::optional<std::int64_t> from, reached;
  std::uint64_t again = 0;  // of its steps those that a later life took, too
  std::string end, ranks, job, changed;
  bool left_no_word = false;
};

std::string shortened(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;  // within a character
  return text.substr(0, most) + "…";
}

std::optional<std::int64_t> whole_number(const nlohmann::json& json, const char* key) {
  const auto number = integer_in(json, key);
  return number >= 0 ? number : std::nullopt;
}

// Of "2026-11-29T04:35:13Z".
std::optional<double> seconds_of(const std::string& utc) {
  std::tm time{};
  const char* end = ::strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  if (!end || *end) return std::nullopt;
  return static_cast<double>(::timegm(&time));
}

std::string date_of_second(const std::optional<double>& second) {
  return second ? for_people(utc_of(static_cast<std::time_t>(*second))) : "";
}

std::string text_of_number(const std::optional<std::int64_t>& number) {
  return number ? fmt::to_string(*number) : "";
}

std::string counted(std::uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// "8 trainers, 4 producers on 12 hosts", as much of it as the line tells.
std::string ranks_of(const nlohmann::json& start) {
  std::string text;
  const auto add = [&](const char* before, std::uint64_t count, const char* what) {
    if (count > 0) text += (text.empty() ? "" : before) + counted(count, what);
  };
  add("", static_cast<std::uint64_t>(whole_number(start, "trainers").value_or(0)), "trainer");
  add(", ", static_cast<std::uint64_t>(whole_number(start, "producers").value_or(0)), "producer");
  if (const auto hosts = start.find("hosts"); hosts != start.end() && hosts->is_array())
    add(" on ", hosts->size(), "host");
  return text;
}

std::string job_of(const nlohmann::json& start) {
  const auto job = shortened(text_of(start, "job"), longest_value),
             restart = text_of_number(whole_number(start, "restart"));
  return restart.empty() || restart == "0" ? job : job + ", restart " + restart;
}

std::string value_of(const nlohmann::json& value) {
  const auto text = value.is_string() ? value.get<std::string>() : value.dump();
  return text.empty() ? "none" : shortened(text, longest_value);
}

// "optim.lr: 0.0001 → 0.0002; ..."
std::string changes_of(const nlohmann::json& start) {
  const auto changed = start.value("changed", nlohmann::json());
  if (!changed.is_object()) return "";
  std::string text;
  std::size_t told = 0;
  for (const auto& [key, values] : changed.items()) {
    if (text.size() > longest_changes) break;
    if (!values.is_array() || values.size() != 2) continue;
    text += fmt::format("{}{}: {} → {}", text.empty() ? "" : "; ", shortened(key, longest_value), value_of(values[0]),
                        value_of(values[1]));
    ++told;
  }
  const auto rest = changed.size() - told;
  return text.empty() || rest == 0 ? text : fmt::format("{}; {} more", text, rest);
}

Life life_from(const nlohmann::json& start) {
  Life life;
  life.began = seconds_of(text_of(start, "time"));
  life.from = whole_number(start, "step");
  life.ranks = ranks_of(start);
  life.job = job_of(start);
  life.changed = changes_of(start);
  return life;
}

bool is_of_the_living(const std::string& state) {
  const auto status = try_parse_run_status(state);
  return status && is_under_way(*status);
}

std::string end_of(const std::string& state, const std::string& reason) {
  return shortened(state + (state.empty() || reason.empty() ? "" : ": ") + reason, longest_end);
}

// A life that was killed has left no word in STATE, but maybe in fault/ the rank that was the first to go.
void end_before(Life& life, const nlohmann::json& next) {
  const auto before = next.value("before", nlohmann::json());
  const auto state = text_of(before, "state");
  auto reason = text_of(before, "reason");
  life.ended = seconds_of(text_of(before, "time"));
  const bool has_reason = !reason.empty();
  std::optional<double> first;
  for (const auto& fault : faults_before(next)) {
    const auto time = time_of_fault(fault);
    life.ended = std::max(life.ended, time);
    if (has_reason || !fault.is_object() || (first && time >= first)) continue;
    first = time;
    reason = fmt::format("rank {}: {}", text_of(fault, "rank"), text_of(fault, "reason"));
  }
  life.left_no_word = is_of_the_living(state);
  if (life.left_no_word && reason.empty()) reason = "no word of its end";
  life.end = end_of(state, reason);
  // Of metrics.jsonl, whose lines may be further apart than checkpoints.
  life.reached = std::max(whole_number(before, "reached"), whole_number(before, "step"));
}

void end_newest(Life& life, const RunRecord& run) {
  const auto state = text_of(run.state, "state");
  life.end = end_of(state, text_of(run.state, "reason"));
  life.reached = whole_number(run.state, "step");
  const auto& steps = run.series("step").steps;
  if (!steps.empty() && steps.back() >= run.newest_start_step.value_or(0))
    life.reached = std::max(life.reached, std::optional(steps.back()));
  const auto newest_line = seconds_of(run.end);
  if (!is_of_the_living(state) && newest_line >= life.began) life.ended = newest_line;
}

using StepSet = boost::icl::interval_set<std::int64_t, std::less, boost::icl::right_open_interval<std::int64_t>>;

// A life that was given up, so that the next one went on from an older or a newer step, took fewer steps again than lie
// behind its start. Of the newest it may not be known how far it has come; it takes all that lies behind its start.
void count_again(std::vector<Life>& lives) {
  StepSet later;
  for (auto it = lives.rbegin(); it != lives.rend(); ++it) {
    auto& life = *it;
    const bool is_newest = it == lives.rbegin();
    const auto begin = life.from.value_or(0),
               end = life.reached.value_or(is_newest ? std::numeric_limits<std::int64_t>::max() : 0);
    const StepSet::interval_type taken(begin, std::max(begin, end));
    StepSet again;
    boost::icl::add_intersection(again, later, taken);
    life.again = again.size();
    later += taken;
  }
}

// The first may have begun when no start was written down yet.
std::vector<Life> lives_of(const RunRecord& run) {
  std::vector<Life> lives;
  for (const auto& start : run.starts) {
    if (start.value("before", nlohmann::json()).is_object()) {
      if (lives.empty()) lives.emplace_back();
      end_before(lives.back(), start);
    }
    lives.push_back(life_from(start));
  }
  if (!lives.empty()) end_newest(lives.back(), run);
  count_again(lives);
  return lives;
}

std::string totals_of(const std::vector<Life>& lives) {
  std::uint64_t again = 0;
  double seconds = 0;
  for (std::size_t i = 0; i + 1 < lives.size(); ++i) {
    again += lives[i].again;
    if (lives[i].ended && lives[i + 1].began) seconds += std::max(0.0, *lives[i + 1].began - *lives[i].ended);
  }
  auto text = fmt::format("{}{}; {} taken again; {} between an end and the next start.", counted(lives.size(), "start"),
                          lives.front().began ? "" : " or more", counted(again, "step"), format_time(seconds));
  if (std::ranges::any_of(lives, &Life::left_no_word))
    text += " An end of which there is no word counts from what STATE or a fault said last.";
  return text;
}

ReportTable table_of_lives(const std::vector<Life>& lives) {
  ReportTable table{{"began, UTC", "ended", "how", "from step", "reached", "taken again", "ranks", "job", "changed"},
                    {}};
  for (std::size_t i = lives.size() - std::min(lives.size(), most_lives); i < lives.size(); ++i) {
    const auto& life = lives[i];
    table.rows.push_back({date_of_second(life.began), date_of_second(life.ended), life.end, text_of_number(life.from),
                          text_of_number(life.reached), life.again > 0 ? fmt::to_string(life.again) : "", life.ranks,
                          life.job, life.changed});
  }
  return without_empty_columns(table);
}

}  // namespace

Section starts_section(Runs runs) {
  Section section{"Starts", {}};
  for (const auto& run : runs) {
    const auto lives = lives_of(run);
    if (lives.size() < 2) continue;
    section.blocks.emplace_back(Paragraph{(runs.size() > 1 ? run.name + ": " : "") + totals_of(lives)});
    section.blocks.emplace_back(table_of_lives(lives));
    if (lives.size() > most_lives)
      section.blocks.emplace_back(Paragraph{
          fmt::format("The newest {} of them; {} has all.", most_lives, (run.folder / run_file::starts).string())});
  }
  return section;
}

}  // namespace millrace
