#include "millrace/loader/ledger.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/secrets.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

using nlohmann::json;

namespace {

// Of the rows that came last: fewer would not tell whether many are bad, and more than twice as many would tell late.
constexpr std::uint64_t recent_from = 10'000, recent_rows = 500'000;

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

// Without those that do not count as bad.
RowCounts bad_rows_of(RowCounts counts) {
  for (const auto reason : {RejectReason::filtered, RejectReason::too_small})
    counts.rejected[static_cast<int>(reason)] = 0;
  return counts;
}

bool exceeds(const RowCounts& counts, double max_share) {
  return static_cast<double>(counts.bad_rows()) > max_share * static_cast<double>(counts.rows());
}

// See NOTE [Judging bad rows].
bool exceeds_on_average(const RowTally& tally, double max_share) {
  constexpr std::size_t few = 8;
  if (tally.archives.size() <= few || max_share == 0) return true;
  double sum = 0, worst = 0;
  int others = -1;
  for (const RowCounts& counts : tally.archives) {
    if (counts.rows() == 0) continue;
    const double share = static_cast<double>(counts.bad_rows()) / static_cast<double>(counts.rows());
    sum += share;
    worst = std::max(worst, share);
    ++others;
  }
  return sum - worst > max_share * others;
}

std::string worst_archives(const RowTally& tally, const DataPlan& plan) {
  std::vector<std::uint32_t> order(tally.archives.size());
  std::iota(order.begin(), order.end(), 0u);
  const std::size_t shown = std::min<std::size_t>(3, order.size());
  std::partial_sort(order.begin(), order.begin() + shown, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto bad_a = tally.archives[a].bad_rows(), bad_b = tally.archives[b].bad_rows();
    return bad_a != bad_b ? bad_a > bad_b : a < b;
  });
  std::string text;
  for (std::uint32_t archive : std::span(order).first(shown)) {
    const RowCounts& counts = tally.archives[archive];
    if (counts.bad_rows() == 0) break;
    text += fmt::format("\n  {}: {} of {} rows ({})", without_secrets(plan.manifest.archives[archive].path),
                        counts.bad_rows(), counts.rows(), main_reasons(bad_rows_of(counts)));
  }
  return text;
}

// `which`: "the last " of them, or empty for all.
[[noreturn]] void fail_bad_share(const RowTally& tally, const DataPlan& plan, const char* which,
                                 const std::string& limit) {
  const RowCounts& counts = tally.total;
  const auto advice = advice_on_columns(counts, "data.train");
  throw Error(Exit::bad_data,
              fmt::format("{} of {}{} rows are bad, more than {}: {}{}", counts.bad_rows(), which, counts.rows(), limit,
                          main_reasons(bad_rows_of(counts)), worst_archives(tally, plan)),
              advice.empty() ? "repair or leave out these archives, or raise data.max_bad_share"
                             : advice + "; else repair or leave out these archives, or raise data.max_bad_share");
}

// NOTE [Lost archives] One that breaks before any row of it is known counts as one bad row, whatever it was to hold. So
// archives are judged by their number as well, from 100 on, with room for chance (`share` is larger than max_share),
// and at the end of a pass from 10 on, where one alone ends none.
void fail_lost_archives(const RowTally& tally, const DataPlan& plan, double share, bool pass_ended) {
  constexpr std::size_t judged_from = 100, judged_at_end_from = 10, shown = 3;
  std::vector<std::string> lost;
  std::size_t seen = 0;
  for (std::size_t i = 0; i < tally.archives.size(); ++i) {
    const auto& counts = tally.archives[i];
    if (counts.rows() == 0) continue;
    ++seen;
    const auto broken = counts.rejected[static_cast<int>(RejectReason::archive_error)];
    if (broken == counts.rows()) lost.push_back(without_secrets(plan.manifest.archives[i].path));
  }
  if (seen < (pass_ended ? judged_at_end_from : judged_from) || lost.size() < 2) return;
  if (static_cast<double>(lost.size()) <= share * static_cast<double>(seen)) return;
  const auto some = std::span(lost).first(std::min(shown, lost.size()));
  throw Error(Exit::bad_data,
              fmt::format("{} of {} archives are broken before any row of theirs is known, more than {:.3g} of them "
                          "(data.max_bad_share): {}{}",
                          lost.size(), seen, share, fmt::join(some, ", "), some.size() < lost.size() ? ", ..." : ""),
              "`millrace inspect ARCHIVE` tells what is wrong with one; repair or leave them out, or raise "
              "data.max_bad_share");
}

}  // namespace

std::uint64_t RowCounts::rejected_rows() const {
  return std::accumulate(rejected.begin(), rejected.end(), std::uint64_t{0});
}
std::uint64_t RowCounts::rows() const {
  return accepted + rejected_rows();
}
std::uint64_t RowCounts::bad_rows() const {
  return bad_rows_of(*this).rejected_rows();
}

void RowCounts::add(std::optional<RejectReason> reason, std::uint64_t rows) {
  (reason ? rejected[static_cast<int>(*reason)] : accepted) += rows;
}

std::string main_reasons(const RowCounts& counts) {
  std::array<int, reason_count> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return counts.rejected[a] > counts.rejected[b]; });
  std::string text;
  for (int i : std::span(order).first(3)) {
    if (counts.rejected[i] == 0) break;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", counts.rejected[i], to_string(static_cast<RejectReason>(i)));
  }
  return text;
}

void RowTally::add(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows) {
  archives[archive].add(reason, rows);
  total.add(reason, rows);
}

void RowTally::add_non_finite(std::uint32_t archive) {
  const bool is_counted = archives[archive].accepted > 0;  // by this tally
  for (RowCounts* counts : {&archives[archive], &total}) {
    counts->accepted -= is_counted;
    counts->add(RejectReason::non_finite);
  }
}

std::string advice_on_columns(const RowCounts& counts, std::string_view section) {
  const RowCounts bad = bad_rows_of(counts);
  const auto captions = bad.rejected[static_cast<int>(RejectReason::missing_caption)];
  const auto images = bad.rejected[static_cast<int>(RejectReason::missing_image)];
  const auto most = std::max(captions, images), fewest = std::min(captions, images);
  if (most == 0 || most < *std::ranges::max_element(bad.rejected)) return "";
  if (2 * fewest >= most) return "in a tar the members of one key must be neighbours, as tar --sort=name puts them";
  return captions == most
             ? fmt::format(
                   "captions are taken from txt of tars, else from caption, TEXT, text or txt: set "
                   "{}.columns.caption to another name, of tars also json.KEY",
                   section)
             : fmt::format(
                   "images are taken from jpg, png, jpeg or webp of tars, else from columns such as image, "
                   "path or url: set {}.columns.image to another name, unless files or addresses are away "
                   "(rejected/ in the run's folder has the details)",
                   section);
}

std::string advice_on_unusable(const RowCounts& counts, std::string_view section) {
  auto advice = advice_on_columns(counts, section);
  if (!advice.empty()) return advice;
  return fmt::format("look into an archive with `millrace inspect`; check {0}.path, {0}.filters and data.images",
                     section);
}

// Ledger -----------------------------------------------------------------------------------------------------------

Ledger::Ledger(const DataPlan& plan)
    : plan_(plan),
      distinct_(plan.manifest.archives.size()),
      recent_(plan.manifest.archives.size()),
      newest_(plan.manifest.archives.size()),
      seen_(plan.stripes.splits.size()) {}

void Ledger::merge(const LedgerDelta& delta) {
  for (const RowRun& run : delta.runs()) {
    if (run.split >= seen_.size()) fail(Exit::io, "ledger delta about split {} of {}", run.split, seen_.size());
    const std::uint32_t archive = plan_.stripes.splits[run.split].archive;
    const RowSet::interval_type rows(run.first, run.first + run.rows);
    RowSet known;
    boost::icl::add_intersection(known, seen_[run.split], rows);
    distinct_.add(archive, run.reason, run.rows - known.size());
    for (RowTally* tally : {&recent_, &newest_}) tally->add(archive, run.reason, run.rows);
    seen_[run.split] += rows;
  }
  for (const auto& [hash, archive] : delta.non_finite()) {
    if (archive >= archives().size()) fail(Exit::io, "ledger delta about archive {} of {}", archive, archives().size());
    for (RowTally* tally : {&recent_, &newest_}) tally->add_non_finite(archive);
    if (non_finite_.insert(hash).second) distinct_.add_non_finite(archive);
  }
  if (newest_.total.rows() >= recent_rows) recent_ = std::exchange(newest_, RowTally(archives().size()));
}

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

void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended) {
  constexpr std::uint64_t judged_from = 100;
  const RowTally &all = ledger.distinct(), &recent = ledger.recent();
  if (pass_ended && all.total.accepted == 0)
    throw Error(
        Exit::bad_data,
        fmt::format("none of {} rows can be used: {}{}", all.total.rows(),
                    all.total.rows() ? main_reasons(all.total) : "the archives are empty", worst_archives(all, plan)),
        advice_on_unusable(all.total, "data.train"));
  const auto is_too_bad = [&](const RowTally& tally, double share) {
    return exceeds(tally.total, share) && (pass_ended || exceeds_on_average(tally, share));
  };
  const double recent_share = std::min(2 * max_share, (1 + max_share) / 2);
  fail_lost_archives(all, plan, pass_ended ? max_share : recent_share, pass_ended);
  if ((pass_ended || all.total.rows() >= judged_from) && is_too_bad(all, max_share))
    fail_bad_share(all, plan, "", fmt::format("data.max_bad_share = {}", max_share));
  if (recent.total.rows() >= recent_from && is_too_bad(recent, recent_share))
    fail_bad_share(recent, plan, "the last ",
                   fmt::format("{:.3g} (up to twice data.max_bad_share = {}, as so few may be worse than all)",
                               recent_share, max_share));
}

}  // namespace millrace
