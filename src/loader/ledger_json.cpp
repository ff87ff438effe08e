#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/secrets.h"
#include "millrace/loader/ledger.h"

namespace millrace {

using nlohmann::json;

namespace {

// JSON as dump_any writes it, appended to a text: as values, the counts of 200,000 archives take seconds and a
// gigabyte. Each key of an object begins with `line`, a break and its indent, or with nothing where all is one line.

// The numbers below `count` by the names that they have, as an object lists its keys.
template <class NameOf>
std::vector<std::uint32_t> sorted_by_name(std::size_t count, const NameOf& name_of) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (!std::ranges::is_sorted(order, {}, name_of)) std::ranges::sort(order, {}, name_of);  // as a rule they are
  return order;
}

std::string deeper(const std::string& line) {
  return line.empty() ? line : line + ' ';
}

void append_string(std::string& text, std::string_view string) {
  const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (std::ranges::all_of(string, is_plain)) {
    text.append("\"").append(string).append("\"");
  } else {
    text += dump_any(json(string));
  }
}

void append_key(std::string& text, const std::string& line, std::string_view key) {
  if (text.back() != '{') text += ',';
  text += line;
  append_string(text, key);
  text += line.empty() ? ":" : ": ";
}

void append_count(std::string& text, const std::string& line, std::string_view key, std::uint64_t rows) {
  append_key(text, line, key);
  fmt::format_to(std::back_inserter(text), "{}", rows);
}

// `line`: of the key that it belongs to.
void end_object(std::string& text, const std::string& line) {
  if (text.back() != '{') text += line;
  text += '}';
}

void append_rejected(std::string& text, const std::string& line, const RowCounts& counts) {
  const auto name_of = [](std::uint32_t i) { return std::string_view(to_string(static_cast<RejectReason>(i))); };
  static const auto reasons = sorted_by_name(reason_count, name_of);
  append_key(text, line, "rejected");
  text += '{';
  for (const std::uint32_t i : reasons)
    if (counts.rejected[i]) append_count(text, deeper(line), name_of(i), counts.rejected[i]);
  end_object(text, line);
}

void append_counts(std::string& text, const std::string& line, std::string_view key, const RowCounts& counts) {
  append_key(text, line, key);
  text += '{';
  append_count(text, deeper(line), "accepted", counts.accepted);
  append_rejected(text, deeper(line), counts);
  append_count(text, deeper(line), "rows", counts.rows());
  end_object(text, line);
}

template <class NameOf>
void append_archives(std::string& text, const std::string& line, std::string_view key, const RowTally& tally,
                     const NameOf& name_of) {
  append_key(text, line, key);
  text += '{';
  for (const std::uint32_t i : sorted_by_name(tally.archives.size(), name_of))
    if (tally.archives[i].rows()) append_counts(text, deeper(line), name_of(i), tally.archives[i]);
  end_object(text, line);
}

RejectReason reason_from_name(const std::string& name) {
  if (const auto reason = try_parse_reject_reason(name)) return *reason;
  fail(Exit::io, "the ledger in the checkpoint knows a reason '{}' that this version does not", name);
}

void add_archives(RowTally& tally, const json& archives, const std::map<std::string, std::uint32_t>& archive_of) {
  for (const auto& [name, counts] : archives.items()) {
    const std::uint32_t archive = archive_of.at(name);
    tally.add(archive, std::nullopt, counts.at("accepted").get<std::uint64_t>());
    for (const auto& [reason, rows] : counts.at("rejected").items())
      tally.add(archive, reason_from_name(reason), rows.get<std::uint64_t>());
  }
}

std::string split_name(const DataPlan& plan, std::uint32_t index) {
  const Split& split = plan.stripes.splits[index];
  const std::string& archive = plan.manifest.archives[split.archive].name;
  return split.count == 1 ? archive : fmt::format("{}:{}/{}", archive, split.index, split.count);
}

}  // namespace

std::string Ledger::report_json() const {
  std::vector<std::string> paths;
  for (const Archive& archive : plan_.manifest.archives) paths.push_back(without_secrets(archive.path));
  const auto path_of = [&](std::uint32_t i) -> auto& {
    return paths[i];
  };
  const std::string line = "\n ";
  std::string text = "{";
  append_count(text, line, "accepted", distinct_.total.accepted);
  append_archives(text, line, "archives", distinct_, path_of);
  if (recent_.total.rows() >= recent_from) append_counts(text, line, "recent", recent_.total);
  append_rejected(text, line, distinct_.total);
  append_count(text, line, "rows", distinct_.total.rows());
  text += "\n}\n";
  return text;
}

std::string Ledger::state_json() const {
  const auto name_of = [&](std::uint32_t i) -> auto& {
    return plan_.manifest.archives[i].name;
  };
  std::string text = "{";
  append_archives(text, "", "archives", distinct_, name_of);
  append_archives(text, "", "newest", newest_, name_of);
  append_key(text, "", "non_finite");
  fmt::format_to(std::back_inserter(text), "[{}]", fmt::join(non_finite_, ","));
  append_archives(text, "", "recent", recent_, name_of);

  std::vector<std::string> splits(seen_.size());
  for (std::uint32_t i = 0; i < seen_.size(); ++i) splits[i] = split_name(plan_, i);
  append_key(text, "", "seen");
  text += '{';
  for (const std::uint32_t i : sorted_by_name(
           splits.size(), [&](std::uint32_t i) -> auto& { return splits[i]; })) {
    if (seen_[i].empty()) continue;
    append_key(text, "", splits[i]);
    text += '[';
    for (const auto& rows : seen_[i])
      fmt::format_to(std::back_inserter(text), "{}[{},{}]", text.back() == '[' ? "" : ",", rows.lower(), rows.upper());
    text += ']';
  }
  text += "}}";
  return text;
}

void Ledger::load_state(std::string_view text) try {
  const json state = json::parse(text);
  Ledger loaded(plan_);
  std::map<std::string, std::uint32_t> archive_of, split_of;
  for (std::uint32_t i = 0; i < archives().size(); ++i) archive_of[plan_.manifest.archives[i].name] = i;
  for (std::uint32_t i = 0; i < seen_.size(); ++i) split_of[split_name(plan_, i)] = i;
  add_archives(loaded.distinct_, state.at("archives"), archive_of);
  add_archives(loaded.recent_, state.value("recent", json::object()), archive_of);  // older checkpoints have none
  add_archives(loaded.newest_, state.value("newest", json::object()), archive_of);
  for (const auto& [name, intervals] : state.at("seen").items())
    for (const auto& [first, end] : intervals.get<std::vector<std::pair<std::uint64_t, std::uint64_t>>>())
      loaded.seen_[split_of.at(name)] += RowSet::interval_type(first, end);
  loaded.non_finite_ = state.at("non_finite").get<std::set<std::uint64_t>>();
  distinct_ = std::move(loaded.distinct_);
  recent_ = std::move(loaded.recent_);
  newest_ = std::move(loaded.newest_);
  seen_ = std::move(loaded.seen_);
  non_finite_ = std::move(loaded.non_finite_);
} catch (const std::out_of_range&) {
  throw Error(Exit::io, "the ledger in the checkpoint names archives or splits that this run does not read",
              "the data or data.stripes have changed since the checkpoint");
} catch (const json::exception& error) {
  fail(Exit::io, "the ledger in the checkpoint cannot be read: {}", error.what());
}

}  // namespace millrace
