#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compare.h"
#include "millrace/io/json.h"
#include "millrace/io/safetensors.h"
#include "run_folder.h"

namespace millrace::storm {
namespace {

using nlohmann::json;

// Whole lines; a kill may leave a part of one.
std::vector<json> read_lines(const fs::path& path) {
  std::vector<json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    auto parsed = json::parse(line, nullptr, false);
    if (parsed.is_discarded()) return lines;
    lines.push_back(std::move(parsed));
  }
  return lines;
}

std::vector<std::string> difference(const json& left, const json& right) {
  std::multiset<std::string> a(left.begin(), left.end()), b(right.begin(), right.end());
  std::vector<std::string> rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

std::string first_ids(const std::vector<std::string>& ids) {
  return fmt::format("{} ids ({}{})", ids.size(),
                     fmt::join(ids.begin(), ids.begin() + std::min<std::size_t>(ids.size(), 6), " "),
                     ids.size() > 6 ? " ..." : "");
}

// All fp32 tensors of a checkpoint, each from its parts.
struct Checkpoint {
  json state;
  std::map<std::string, std::vector<float>> tensors;  // KIND/NAME
};

Checkpoint read_checkpoint(const fs::path& run, int step) {
  const auto folder = checkpoint_folder(run, step);
  const json manifest = read_json(folder / "MANIFEST.json");
  std::map<std::string, SafetensorsFile> files;
  for (const auto& file : manifest.at("files")) {
    const auto name = file.at("name").get<std::string>();
    if (name.ends_with(".safetensors")) files.emplace(name, SafetensorsFile(folder / name));
  }
  Checkpoint checkpoint{manifest.at("state"), {}};
  for (const auto& [key, entry] : manifest.at("tensors").items()) {
    auto& values = checkpoint.tensors[key];
    for (const auto& part : entry.at("parts")) {
      const auto bytes = files.at(part.at("file").get<std::string>()).bytes(key);
      const auto begin = values.size();
      values.resize(begin + bytes.size() / sizeof(float));
      std::memcpy(values.data() + begin, bytes.data(), bytes.size());
    }
  }
  return checkpoint;
}

// L2 norm of the difference over that of `b`, over all tensors of a kind. Single values may differ more (NOTE [Adam and
// noise] in e2e/weights.h).
double relative_difference(const Checkpoint& a, const Checkpoint& b, const std::string& kind) {
  double square = 0, norm = 0;
  for (const auto& [key, right] : b.tensors) {
    if (!key.starts_with(kind + "/")) continue;
    const auto& left = a.tensors.at(key);
    for (std::size_t i = 0; i < right.size(); ++i) {
      square += std::pow(static_cast<double>(left[i]) - right[i], 2);
      norm += std::pow(static_cast<double>(right[i]), 2);
    }
  }
  return norm > 0 ? std::sqrt(square / norm) : 0;
}

Troubles compare_bits(const Checkpoint& a, const Checkpoint& b) {
  std::size_t tensors = 0, values = 0;
  std::string first;
  for (const auto& [key, right] : b.tensors) {
    const auto& left = a.tensors.at(key);
    std::size_t differ = 0;
    for (std::size_t i = 0; i < right.size(); ++i) differ += std::memcmp(&left[i], &right[i], sizeof(float)) != 0;
    if (differ == 0) continue;
    if (++tensors == 1) first = key;
    values += differ;
  }
  if (tensors == 0) return {};
  return {fmt::format("{} values of {} tensors are not bit-equal, the first in {}; weights differ by {:.1e}", values,
                      tensors, first, relative_difference(a, b, "weights"))};
}

Troubles compare_shapes(const Checkpoint& a, const Checkpoint& b) {
  const auto sizes = [](const Checkpoint& c) {
    std::map<std::string, std::size_t> sizes;
    for (const auto& [key, values] : c.tensors) sizes[key] = values.size();
    return sizes;
  };
  if (sizes(a) == sizes(b)) return {};
  return {"the checkpoints have other tensors"};
}

Troubles compare_states(const json& a, const json& b) {
  Troubles troubles;
  for (const char* key : {"step", "samples", "skipped", "updates", "ema_updates"})
    if (a.at(key) != b.at(key))
      troubles.push_back(
          fmt::format("{} in the last checkpoint: {}, straight {}", key, a.at(key).dump(), b.at(key).dump()));
  std::vector<std::string> moved;
  for (const auto& [stripe, place] : b.at("cursors").items())
    if (const auto& other = a.at("cursors").value(stripe, json()); other != place)
      moved.push_back(fmt::format("{} at {} instead of {}", stripe, other.dump(), place.dump()));
  if (!moved.empty() || a.at("cursors").size() != b.at("cursors").size())
    troubles.push_back(
        fmt::format("{} of {} stripes stand elsewhere: {}", moved.size(), b.at("cursors").size(),
                    fmt::join(moved.begin(), moved.begin() + std::min<std::size_t>(moved.size(), 4), ", ")));
  return troubles;
}

Troubles compare_metrics(const fs::path& run, const fs::path& reference, int steps, bool to_the_bit) {
  const double tolerance = to_the_bit ? 0 : 1e-4;
  const auto mine = read_lines(run / "metrics.jsonl"), straight = read_lines(reference / "metrics.jsonl");
  if (static_cast<int>(mine.size()) != steps || static_cast<int>(straight.size()) != steps)
    return {fmt::format("metrics.jsonl has {} lines, the straight run's {}, for {} steps", mine.size(), straight.size(),
                        steps)};
  for (int i = 0; i < steps; ++i) {
    const auto& a = mine[static_cast<std::size_t>(i)];
    const auto& b = straight[static_cast<std::size_t>(i)];
    for (const char* key : {"step", "samples", "loss", "grad_norm", "lr"}) {
      const double left = a.at(key), right = b.at(key);
      if (std::abs(left - right) > tolerance * std::abs(right))
        return {fmt::format("step {}: {} {}, straight {}", i + 1, key, left, right)};
    }
  }
  return {};
}

// Whether every stripe has been through all its rows once, so that every row was seen: from their places.
bool all_rows_seen(const json& cursors) {
  return std::ranges::all_of(cursors, [](const json& place) { return place.at(0).get<int>() >= 1; });
}

Troubles check_counts(const json& counts, const std::string& of) {
  std::int64_t rejected = 0;
  for (const auto& [reason, count] : counts.at("rejected").items()) rejected += count.get<std::int64_t>();
  if (counts.at("rows").get<std::int64_t>() == counts.at("accepted").get<std::int64_t>() + rejected) return {};
  return {fmt::format("ledger.json, {}: rows are not accepted + rejected: {}", of, counts.dump())};
}

// Producers read ahead, so only bounds hold until every row was seen.
Troubles check_ledger(const json& ledger, const Truth& truth, std::size_t distinct, bool all_seen) {
  auto troubles = check_counts(ledger, "the whole");
  std::int64_t rows = 0;
  for (const auto& [path, counts] : ledger.at("archives").items()) {
    rows += counts.at("rows").get<std::int64_t>();
    for (auto& trouble : check_counts(counts, path)) troubles.push_back(trouble);
  }
  if (rows != ledger.at("rows").get<std::int64_t>())
    troubles.push_back(fmt::format("ledger.json: {} rows, but {} in its archives", ledger.at("rows").dump(), rows));

  std::map<std::string, int> rejected;
  for (const auto& [reason, count] : ledger.at("rejected").items())
    rejected[reason_of_truth(reason)] += count.get<int>();
  const auto accepted = ledger.at("accepted").get<std::size_t>();
  bool right = accepted <= truth.good.size() && accepted >= distinct;
  for (const auto& [reason, count] : rejected) {
    const auto found = truth.rejected.find(reason);
    right &= found != truth.rejected.end() && count <= found->second;
  }
  if (all_seen) right &= accepted == truth.good.size() && rejected == truth.rejected;
  if (!right)
    troubles.push_back(
        fmt::format("ledger.json: {} accepted, rejected {}; {} different samples trained; the archives hold {} good "
                    "rows and {}{}",
                    accepted, ledger.at("rejected").dump(), distinct, truth.good.size(), json(truth.rejected).dump(),
                    all_seen ? ", all were seen" : ""));
  return troubles;
}

}  // namespace

Troubles compare_ids(const fs::path& run, const fs::path& reference) {
  const auto mine = read_lines(run / "ids.jsonl"), straight = read_lines(reference / "ids.jsonl");
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (i >= straight.size())
      return {fmt::format("ids.jsonl has {} lines, the straight run's {}", mine.size(), straight.size())};
    if (mine[i] == straight[i]) continue;
    const auto &a = mine[i].at("ids"), &b = straight[i].at("ids");
    std::size_t place = 0;
    while (place < a.size() && place < b.size() && a[place] == b[place]) ++place;
    return {fmt::format("step {}: ids differ from place {} of {} on; too many: {}; missing: {}",
                        mine[i].at("step").dump(), place, b.size(), first_ids(difference(a, b)),
                        first_ids(difference(b, a)))};
  }
  return {};
}

Troubles compare_runs(const fs::path& run, const fs::path& reference, int steps, bool to_the_bit) {
  if (const auto lines = read_lines(run / "ids.jsonl").size(); static_cast<int>(lines) != steps)
    return {fmt::format("ids.jsonl has {} lines for {} steps", lines, steps)};
  auto troubles = compare_ids(run, reference);
  const auto add = [&](Troubles more) { troubles.insert(troubles.end(), more.begin(), more.end()); };
  add(compare_metrics(run, reference, steps, to_the_bit));
  const auto mine = read_checkpoint(run, steps), straight = read_checkpoint(reference, steps);
  add(compare_states(mine.state, straight.state));
  if (auto other = compare_shapes(mine, straight); !other.empty()) {
    add(std::move(other));
  } else if (to_the_bit) {
    add(compare_bits(mine, straight));
  } else {
    for (const char* kind : {"weights", "ema"})
      if (const double apart = relative_difference(mine, straight, kind); apart > 1e-4)
        troubles.push_back(fmt::format("{} differ by {:.1e} from the straight run's", kind, apart));
  }
  return troubles;
}

double weights_apart(const fs::path& run, const fs::path& reference, int steps) {
  return relative_difference(read_checkpoint(run, steps), read_checkpoint(reference, steps), "weights");
}

Troubles check_samples(const fs::path& run, const Truth& truth, int steps) {
  std::set<std::string> seen;
  for (const auto& line : read_lines(run / "ids.jsonl")) seen.insert(line.at("ids").begin(), line.at("ids").end());
  const auto state = read_checkpoint(run, steps).state;
  Troubles troubles;
  for (const auto& id : seen)
    if (!truth.good.contains(id)) troubles.push_back(fmt::format("{} was trained, but is no good sample", id));
  const bool all = all_rows_seen(state.at("cursors"));
  for (const auto& id : truth.good)
    if (all && !seen.contains(id)) troubles.push_back(fmt::format("{} was never trained", id));
  const auto ledger = check_ledger(read_json(run / "ledger.json"), truth, seen.size(), all);
  troubles.insert(troubles.end(), ledger.begin(), ledger.end());
  return troubles;
}

}  // namespace millrace::storm
