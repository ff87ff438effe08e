#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json_fields.h"
#include "millrace/core/files.h"
#include "plot.h"
#include "sections.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

std::optional<std::int64_t> step_of(const Json& line) {
  return integer_in(line, "step");
}

// How its numbers were made; null in lines of earlier versions.
Json protocol_of(const Json& line) {
  const auto found = line.find("protocol");
  return found != line.end() && found->is_object() ? *found : Json();
}

std::string number(const Json& line, const char* key) {
  const auto value = number_in(line, key);
  return value ? short_number(*value) : "";
}

// A run may keep an EMA, and have both scored.
bool is_of_raw_weights(const Json& line) {
  return text_of(line, "weights") == "raw";
}

// A line without a step is of another model than the run's: the name of its folder.
std::string step_or_model(const Json& line) {
  if (auto step = text_of(line, "step"); !step.empty()) return step;
  return without_last_slash(fs::path(text_of(line, "checkpoint")).lexically_normal()).filename().string();
}

// The losses of its buckets, by the first timestep of each.
std::map<std::int64_t, double> losses_in(const Json& line, const char* key) {
  std::map<std::int64_t, double> losses;
  if (!line.contains(key) || !line[key].is_object()) return losses;
  for (const auto& [bucket, loss] : line[key].items())
    if (loss.is_number()) losses[std::atoll(bucket.c_str())] = loss.get<double>();
  return losses;
}

// Lines of earlier versions hold the buckets alone, in which different numbers of samples count alike.
std::string scored_loss(const Json& line) {
  const auto unweighted = number(line, "loss_mean_unweighted");
  if (line.contains("loss_mean"))
    return number(line, "loss_mean") + (unweighted.empty() ? "" : " (without weights " + unweighted + ")");
  const auto losses = losses_in(line, "loss");
  double sum = 0;
  for (const auto& [bucket, loss] : losses) sum += loss;
  return losses.empty() ? "" : "≈ " + short_number(sum / static_cast<double>(losses.size()));
}

std::string kid_of(const Json& line) {
  const auto deviation = number(line, "kid_std");
  return number(line, "kid") + (deviation.empty() ? "" : " ± " + deviation);
}

std::string clip_score_of(const Json& line) {
  const auto deviation = number(line, "clip_score_std");  // of single pictures, no error of the mean
  return number(line, "clip_score") + (deviation.empty() ? "" : " (std " + deviation + ")");
}

// "steps = 50, tokenizer.mode = open_clip".
std::string settings_text(const Json& settings, const std::string& above = "") {
  std::string text;
  for (const auto& [key, value] : settings.items()) {
    const auto name = above + key;
    const auto word = value.is_null() ? "none" : text_of(settings, key);
    const auto part = value.is_object() ? settings_text(value, name + ".") : fmt::format("{} = {}", name, word);
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

std::string tokenizer_of(const Json& line) {
  const auto protocol = protocol_of(line);
  const auto tokenizer = protocol.find("tokenizer");
  if (tokenizer == protocol.end()) return "";
  return tokenizer->is_object() ? settings_text(*tokenizer) : text_of(protocol, "tokenizer");
}

// "A", "B": the protocols in the order in which they come; numbers of one letter may be compared. How losses are
// measured differs with what is trained, where pictures compare: the ways to do it are "a", "b". The tokenizer is the
// model's, too.
class Protocols {
 public:
  void add(const Json& line) {
    const auto protocol = protocol_of(line);
    if (protocol.is_null()) {
      has_none_ = true;
      return;
    }
    add_if_new(protocols_, of_pictures(protocol));
    if (protocol.contains("loss")) add_if_new(losses_, protocol["loss"]);
  }

  // Of a line that was added, as all below.
  std::string letter_of(const Json& line) const {
    const auto protocol = protocol_of(line);
    return protocol.is_null() ? "" : letter('A', place_in(protocols_, of_pictures(protocol)));
  }

  // With that of the loss where there are several.
  std::string mark_of(const Json& line) const { return letter_of(line) + loss_mark_of(line); }

  std::string loss_mark_of(const Json& line) const {
    const auto protocol = protocol_of(line);
    const auto loss = protocol.find("loss");
    return losses_.size() > 1 && loss != protocol.end() ? letter('a', place_in(losses_, *loss)) : "";
  }

  bool are_several() const { return protocols_.size() + (has_none_ ? 1 : 0) > 1; }

  std::vector<Block> describe() const {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < protocols_.size(); ++i)
      blocks.emplace_back(Paragraph{fmt::format("Protocol {}: {}.", letter('A', i), settings_text(protocols_[i]))});
    for (std::size_t i = 0; i < losses_.size(); ++i)
      blocks.emplace_back(Paragraph{
          fmt::format("Loss{}: {}.", losses_.size() > 1 ? " " + letter('a', i) : "", settings_text(losses_[i]))});
    return blocks;
  }

 private:
  static std::string letter(char first, std::size_t i) {
    return i < 26 ? std::string(1, static_cast<char>(first + static_cast<char>(i))) : fmt::format("{}", i + 1);
  }

  static Json of_pictures(Json protocol) {
    protocol.erase("loss");
    protocol.erase("tokenizer");
    return protocol;
  }

  static std::size_t place_in(const std::vector<Json>& all, const Json& one) {
    return static_cast<std::size_t>(std::ranges::find(all, one) - all.begin());
  }

  static void add_if_new(std::vector<Json>& all, const Json& one) {
    if (place_in(all, one) == all.size()) all.push_back(one);
  }

  std::vector<Json> protocols_, losses_;
  bool has_none_ = false;  // lines of earlier versions
};

// By guidance scale, weights and protocol, of one number of evaluation.jsonl.
std::map<std::string, Series> by_scale(const RunRecord& run, const char* key, const Protocols& protocols) {
  std::map<std::string, Series> curves;
  for (const auto& line : run.evaluations) {
    const auto step = step_of(line);
    const auto value = number_in(line, key);
    if (!step || !value) continue;
    auto name = "scale " + text_of(line, "guidance_scale") + (is_of_raw_weights(line) ? ", raw weights" : "");
    if (const auto letter = protocols.letter_of(line); protocols.are_several() && !letter.empty())
      name += " (" + letter + ")";
    auto& series = curves[name];
    series.steps.push_back(*step);
    series.values.push_back(*value);
  }
  return curves;
}

// FID over CLIP score, a point for each guidance scale in their order: what more guidance costs. Of the newest step and
// protocol that have several with such weights.
Curve guidance_sweep(const RunRecord& run, bool is_raw, double clip_unit, const Protocols& protocols) {
  struct Point {
    double scale, clip_score, fid;
  };
  std::map<std::pair<std::int64_t, std::string>, std::vector<Point>> groups;
  for (const auto& line : run.evaluations) {
    const auto step = step_of(line);
    const auto fid = number_in(line, "fid"), clip = number_in(line, "clip_score");
    if (step && fid && clip && is_of_raw_weights(line) == is_raw)
      groups[{*step, protocols.letter_of(line)}].push_back(
          {number_in(line, "guidance_scale").value_or(0), *clip, *fid});
  }
  for (auto line = run.evaluations.rbegin(); line != run.evaluations.rend(); ++line) {
    const auto group = groups.find({step_of(*line).value_or(0), protocols.letter_of(*line)});
    if (group == groups.end() || group->second.size() < 2) continue;
    std::ranges::stable_sort(group->second, {}, &Point::scale);
    Curve curve;
    for (const auto& point : group->second) {
      curve.points.steps.push_back(std::llround(point.clip_score / clip_unit));
      curve.points.values.push_back(point.fid);
      curve.labels.push_back(fmt::format("{}", point.scale));
    }
    return curve;
  }
  return {};
}

// Of the last line of such weights that has one, all samples alike. Lines of earlier versions do not tell that of a run
// that weights its samples.
Curve loss_by_timestep(const RunRecord& run, bool is_raw, const Protocols& protocols) {
  Curve curve;
  const bool is_weighted = weights_losses(run);
  for (auto line = run.evaluations.rbegin(); line != run.evaluations.rend() && curve.points.steps.empty(); ++line) {
    if (!step_of(*line) || is_of_raw_weights(*line) != is_raw) continue;
    const bool tells_both = line->contains("loss_unweighted");
    const bool tells_how = !text_of(protocol_of(*line), "loss").empty();
    if (!tells_both && !tells_how && is_weighted) continue;
    for (const auto& [timestep, loss] : losses_in(*line, tells_both ? "loss_unweighted" : "loss")) {
      curve.points.steps.push_back(timestep);
      curve.points.values.push_back(loss);
    }
    curve.name = protocols.loss_mark_of(*line);
  }
  return curve;
}

std::string joined_words(std::initializer_list<std::string> words) {
  std::string text;
  for (const auto& word : words)
    if (!word.empty()) text += (text.empty() ? "" : " ") + word;
  return text;
}

}  // namespace

Section evaluation_section(Runs runs) {
  ReportTable table{
      {"run", "step", "weights", "tokenizer", "guidance", "images", "FID", "KID", "CLIP score", "loss", "protocol"},
      {}};
  Protocols protocols;
  for (const auto& run : runs)
    for (const auto& line : run.evaluations) protocols.add(line);
  for (const auto& run : runs)
    for (const auto& line : run.evaluations)
      table.rows.push_back({runs.size() > 1 ? run.name : "", step_or_model(line), text_of(line, "weights"),
                            tokenizer_of(line), text_of(line, "guidance_scale"), text_of(line, "images"),
                            number(line, "fid"), kid_of(line), clip_score_of(line), scored_loss(line),
                            protocols.mark_of(line)});
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
  Plot sweep{.title = "FID over CLIP score",
             .unit = "a point for each guidance scale, newest step",
             .curves = {},
             .x_unit = 0.001};
  Plot losses{
      .title = "Loss by timestep", .unit = "of data.validation, newest evaluation, all samples alike", .curves = {}};
  for (const auto& run : runs)
    for (const bool is_raw : {false, true}) {
      const auto name = joined_words({runs.size() > 1 ? run.name : "", is_raw ? "raw weights" : ""});
      if (auto curve = guidance_sweep(run, is_raw, sweep.x_unit, protocols); !curve.labels.empty()) {
        curve.name = name;
        sweep.curves.push_back(std::move(curve));
      }
      if (auto curve = loss_by_timestep(run, is_raw, protocols); !curve.points.steps.empty()) {
        curve.name = joined_words({name, curve.name.empty() ? "" : "(" + curve.name + ")"});
        losses.curves.push_back(std::move(curve));
      }
    }
  add(std::move(sweep));
  add(std::move(losses));
  return section;
}

}  // namespace millrace
