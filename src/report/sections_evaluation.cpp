#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plot.h"
#include "sections.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

std::optional<double> number_in(const Json& line, const char* key) {
  if (!line.contains(key) || !line[key].is_number()) return std::nullopt;
  return line[key].get<double>();
}

std::optional<std::int64_t> step_of(const Json& line) {
  if (!line.contains("step") || !line["step"].is_number_integer()) return std::nullopt;
  return line["step"].get<std::int64_t>();
}

std::string number(const Json& line, const char* key) {
  const auto value = number_in(line, key);
  return value ? short_number(*value) : "";
}

// The losses of its buckets, by the first timestep of each.
std::map<std::int64_t, double> losses_in(const Json& line) {
  std::map<std::int64_t, double> losses;
  if (!line.contains("loss") || !line["loss"].is_object()) return losses;
  for (const auto& [bucket, loss] : line["loss"].items())
    if (loss.is_number()) losses[std::atoll(bucket.c_str())] = loss.get<double>();
  return losses;
}

// Lines of earlier versions hold the buckets alone, in which different numbers of samples count alike.
std::string scored_loss(const Json& line) {
  if (line.contains("loss_mean")) return number(line, "loss_mean");
  const auto losses = losses_in(line);
  double sum = 0;
  for (const auto& [bucket, loss] : losses) sum += loss;
  return losses.empty() ? "" : "≈ " + short_number(sum / static_cast<double>(losses.size()));
}

std::string kid_of(const Json& line) {
  const auto deviation = number(line, "kid_std");
  return number(line, "kid") + (deviation.empty() ? "" : " ± " + deviation);
}

// "A", "B": the protocols in the order in which they come; numbers of one letter may be compared.
class Protocols {
 public:
  std::string letter_of(const Json& line) {
    if (!line.contains("protocol") || !line["protocol"].is_object()) {
      has_none_ = true;
      return "";
    }
    auto found = std::ranges::find(protocols_, line["protocol"]);
    if (found == protocols_.end()) found = protocols_.insert(found, line["protocol"]);
    return letter(static_cast<std::size_t>(found - protocols_.begin()));
  }

  bool are_several() const { return protocols_.size() + (has_none_ ? 1 : 0) > 1; }

  std::vector<Block> describe() const {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < protocols_.size(); ++i) {
      std::string text;
      for (const auto& [key, value] : protocols_[i].items())
        text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", key, text_of(protocols_[i], key.c_str()));
      blocks.emplace_back(Paragraph{fmt::format("Protocol {}: {}.", letter(i), text)});
    }
    return blocks;
  }

 private:
  static std::string letter(std::size_t i) {
    return i < 26 ? std::string(1, static_cast<char>('A' + i)) : fmt::format("{}", i + 1);
  }

  std::vector<Json> protocols_;
  bool has_none_ = false;  // lines of earlier versions
};

// Without the columns that say nothing; gaps in the others are dashes.
ReportTable without_empty_columns(const ReportTable& table) {
  ReportTable result{{}, std::vector<std::vector<std::string>>(table.rows.size())};
  for (std::size_t column = 0; column < table.header.size(); ++column) {
    const auto says_nothing = [&](const auto& row) { return row[column].empty(); };
    if (std::ranges::all_of(table.rows, says_nothing)) continue;
    result.header.push_back(table.header[column]);
    for (std::size_t i = 0; i < table.rows.size(); ++i)
      result.rows[i].push_back(table.rows[i][column].empty() ? "–" : table.rows[i][column]);
  }
  return result;
}

// By guidance scale and protocol, of one number of evaluation.jsonl.
std::map<std::string, Series> by_scale(const RunRecord& run, const char* key, Protocols& protocols) {
  std::map<std::string, Series> curves;
  for (const auto& line : run.evaluations) {
    const auto step = step_of(line);
    const auto value = number_in(line, key);
    if (!step || !value) continue;
    auto name = "scale " + text_of(line, "guidance_scale");
    if (const auto letter = protocols.letter_of(line); protocols.are_several() && !letter.empty())
      name += " (" + letter + ")";
    auto& series = curves[name];
    series.steps.push_back(*step);
    series.values.push_back(*value);
  }
  return curves;
}

// FID over CLIP score, a point for each guidance scale: what more guidance costs. Of the newest step and protocol that
// have several.
Series guidance_sweep(const RunRecord& run, double clip_unit, Protocols& protocols) {
  std::map<std::pair<std::int64_t, std::string>, std::map<std::int64_t, double>> groups;  // CLIP score in units, FID
  for (const auto& line : run.evaluations) {
    const auto step = step_of(line);
    const auto fid = number_in(line, "fid"), clip = number_in(line, "clip_score");
    if (step && fid && clip) groups[{*step, protocols.letter_of(line)}][std::llround(*clip / clip_unit)] = *fid;
  }
  for (auto line = run.evaluations.rbegin(); line != run.evaluations.rend(); ++line) {
    const auto group = groups.find({step_of(*line).value_or(0), protocols.letter_of(*line)});
    if (group == groups.end() || group->second.size() < 2) continue;
    Series series;
    for (const auto& [clip, fid] : group->second) {
      series.steps.push_back(clip);
      series.values.push_back(fid);
    }
    return series;
  }
  return {};
}

// Of the last line that has one.
Series loss_by_timestep(const RunRecord& run) {
  Series series;
  for (auto line = run.evaluations.rbegin(); line != run.evaluations.rend() && series.steps.empty(); ++line)
    for (const auto& [timestep, loss] : losses_in(*line)) {
      series.steps.push_back(timestep);
      series.values.push_back(loss);
    }
  return series;
}

}  // namespace

Section evaluation_section(Runs runs) {
  ReportTable table{{"run", "step", "guidance", "images", "FID", "KID", "CLIP score", "loss", "protocol"}, {}};
  Protocols protocols;
  for (const auto& run : runs)
    for (const auto& line : run.evaluations)
      table.rows.push_back({runs.size() > 1 ? run.name : "", text_of(line, "step"), text_of(line, "guidance_scale"),
                            text_of(line, "images"), number(line, "fid"), kid_of(line), number(line, "clip_score"),
                            scored_loss(line), protocols.letter_of(line)});
  if (table.rows.empty()) return {};
  Section section{"Evaluation", {without_empty_columns(table)}};
  for (auto& block : protocols.describe()) section.blocks.push_back(std::move(block));

  const auto add = [&](Plot plot) {
    if (!plot.curves.empty()) section.blocks.emplace_back(std::move(plot));
  };
  for (const auto& [key, title] : {std::pair{"fid", "FID"}, std::pair{"clip_score", "CLIP score"}}) {
    Plot plot{title, "by checkpoint", {}};
    for (const auto& run : runs)
      for (auto& [name, series] : by_scale(run, key, protocols))
        plot.curves.push_back({(runs.size() > 1 ? run.name + " " : "") + name, std::move(series)});
    add(std::move(plot));
  }
  Plot sweep{.title = "FID over CLIP score", .unit = "by guidance scale, newest step", .curves = {}, .x_unit = 0.001};
  Plot losses{.title = "Loss by timestep", .unit = "of data.validation, newest evaluation", .curves = {}};
  for (const auto& run : runs) {
    const auto name = runs.size() > 1 ? run.name : std::string();
    if (auto series = guidance_sweep(run, sweep.x_unit, protocols); !series.steps.empty())
      sweep.curves.push_back({name, std::move(series)});
    if (auto series = loss_by_timestep(run); !series.steps.empty()) losses.curves.push_back({name, std::move(series)});
  }
  add(std::move(sweep));
  add(std::move(losses));
  return section;
}

}  // namespace millrace
