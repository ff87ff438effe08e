#include "evaluate/evaluation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "evaluate/captions.h"
#include "evaluate/image_folder.h"
#include "evaluate/protocol.h"
#include "evaluate/sweep_page.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/models/tensors.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Metric = EvaluateConfig::Metric;

// What was measured, by its keys.
void add(Json& line, const Scores& scores, const std::optional<ValidationLoss>& loss) {
  if (scores.pictures > 0) line["images"] = scores.pictures;
  const auto add_score = [&](const char* key, const std::optional<double>& value) {
    if (value) line[key] = *value;
  };
  add_score("fid", scores.fid);
  add_score("kid", scores.kid);
  add_score("kid_std", scores.kid_std);
  add_score("clip_score", scores.clip_score);
  if (!loss) return;
  line["loss_mean"] = std::isfinite(loss->mean) ? Json(loss->mean) : Json(nullptr);
  for (const auto& bucket : loss->by_timestep)
    line["loss"][bucket.name()] = std::isfinite(bucket.mean) ? Json(bucket.mean) : Json(nullptr);
}

std::string describe(const Json& line, const std::optional<ValidationLoss>& loss) {
  auto text = name_of(line);
  const auto number = [&](const char* key, const char* title, const char* format) {
    if (line.contains(key))
      text += fmt::format("  {} {}", title, fmt::format(fmt::runtime(format), line[key].get<double>()));
  };
  number("fid", "FID", "{:.4g}");
  number("kid", "KID", "{:.5f}");
  number("kid_std", "+-", "{:.5f}");
  number("clip_score", "CLIP score", "{:.2f}");
  if (loss) text += fmt::format("  loss {:.5f}", loss->mean);
  if (line.contains("images")) text += fmt::format("  ({} pictures)", line["images"].get<std::int64_t>());
  return text;
}

}  // namespace

std::string name_of(const Json& line) {
  auto name = line.contains("step") ? fmt::format("step {}", line["step"].get<std::int64_t>())
                                    : line["checkpoint"].get<std::string>();
  if (line.contains("guidance_scale")) name += fmt::format(", scale {}", line["guidance_scale"].get<double>());
  return name;
}

Evaluation::Evaluation(const Session& session, const EvaluateRoot& root, const EvaluateJob& job)
    : session_(session),
      root_(root),
      job_(job),
      arithmetic_{session.device, parse_dtype(root.model.dtype, session.device)} {
  const auto& prompts = root.evaluate.prompts;
  on_all(world(), [&] {
    if (prompts) captions_ = read_captions(*prompts);
    if (root.measures_pictures() && job.source != EvaluateJob::Source::images)
      check_count(painted(), "evaluate.prompts", *prompts);
  });
  if (root.measures_pictures()) scorer_.emplace(session, root.evaluate);
  on_root(world(), [&] {
    std::error_code error;
    fs::create_directories(folder(), error);
    if (error) fail(Exit::io, "--out {}: {}", job.out.string(), error.message());
    if (root.evaluate.features_out) check_features_file(*root.evaluate.features_out);
  });
  lease_.emplace(RunLease::acquire(world(), folder()));
  on_root(world(), [&] { file_.emplace(job.out / "evaluation.jsonl"); });
}

std::int64_t Evaluation::painted() const {
  return std::min<std::int64_t>(root_.evaluate.count, std::ssize(captions_));
}

Json Evaluation::protocol() const {
  return protocol_of(root_, job_.source, painted());
}

// Distances are between distributions, of which one picture tells nothing.
void Evaluation::check_count(std::int64_t pictures, const char* key, const std::string& path) const {
  if (pictures < 2 && (root_.evaluate.wants(Metric::fid) || root_.evaluate.wants(Metric::kid)))
    throw Error(Exit::usage, fmt::format("{} {}: FID and KID need two pictures, and there is one", key, path),
                "evaluate.metrics=[clip] takes one");
}

void Evaluation::score_images() {
  const auto files = on_all(world(), [&] {
    auto found = list_images(job_.path);
    if (root_.evaluate.wants(Metric::clip) && captions_.size() < found.size())
      fail(Exit::usage, "evaluate.prompts holds {} captions for {} pictures", captions_.size(), found.size());
    check_count(std::ssize(found), "--images", job_.path.string());
    return found;
  });
  const auto scores =
      scorer_->score(std::ssize(files), captions_, "scoring", [&](std::int64_t begin, std::int64_t end) {
        std::vector<Image> images;
        for (auto i = begin; i < end; ++i) images.push_back(read_image(files[static_cast<std::size_t>(i)]));
        return images;
      });
  put({{"checkpoint", job_.path.string()}}, scores, {});
}

void Evaluation::score_pipeline() {
  const auto pipeline = open_pipeline(world(), job_.path.string());
  std::optional<Painter> painter;
  on_all(world(), [&] { painter.emplace(pipeline, root_.tokenizer, arithmetic_); });
  score_model({{"checkpoint", job_.path.string()}}, *painter, {});
}

void Evaluation::score_model(const Json& model, Painter& painter, const std::optional<ValidationLoss>& loss) {
  if (!root_.measures_pictures()) {
    put(model, {}, loss);
    return;
  }
  for (const double scale : root_.evaluate.guidance_scales) {
    auto line = model;
    line["guidance_scale"] = scale;
    if (!line.contains("step") || !is_held(line)) put(line, paint_and_score(painter, line, scale), loss);
  }
  on_root(world(), [&] { write_sweep(model); });
}

bool Evaluation::is_scored(Json model) const {
  if (!root_.measures_pictures()) return holds(model);
  return std::ranges::all_of(root_.evaluate.guidance_scales, [&](double scale) {
    model["guidance_scale"] = scale;
    return holds(model);
  });
}

// Features are another one, of which it does not tell.
bool Evaluation::holds(Json line) const {
  line["protocol"] = protocol();
  return !root_.evaluate.features_out && file_->holds(line);
}

bool Evaluation::is_held(const Json& line) const {
  bool is_held = false;
  on_root(world(), [&] { is_held = holds(line); });
  return world().any(is_held);
}

Scores Evaluation::paint_and_score(Painter& painter, const Json& line, double scale) {
  auto generate = root_.generate;
  generate.guidance_scale = scale;
  generate.batch_size = root_.evaluate.batch_size;
  return scorer_->score(painted(), captions_, fmt::format("painting {}", name_of(line)),
                        [&](std::int64_t begin, std::int64_t end) {
                          std::vector<ImageRequest> requests;
                          for (auto n = begin; n < end; ++n)
                            requests.push_back({captions_[static_cast<std::size_t>(n)], generate.negative_prompt,
                                                root_.evaluate.seed + static_cast<std::uint64_t>(n)});
                          auto images = painter.paint(requests, generate);
                          if (begin == 0) write_first_pictures(line, images, requests);
                          return images;
                        });
}

// For a look at what was scored.
void Evaluation::write_first_pictures(const Json& line, std::vector<Image> images,
                                      const std::vector<ImageRequest>& requests) const {
  images.resize(std::min<std::size_t>(images.size(), 16));
  std::vector<std::string> captions;
  for (std::size_t i = 0; i < images.size(); ++i) captions.push_back(requests[i].prompt);
  const auto name = line.contains("step") ? step_name(line["step"]) : "pipeline";
  write_png(folder() / fmt::format("{}-scale-{}.png", name, line["guidance_scale"].get<double>()),
            make_grid(images, captions));
}

void Evaluation::put(Json line, const Scores& scores, const std::optional<ValidationLoss>& loss) {
  on_root(world(), [&] {
    add(line, scores, loss);
    line["protocol"] = protocol();
    if (!lease_->is_ours()) fail(Exit::requeue, "{} has another owner by now", folder().string());
    file_->put(line);
    print_out(describe(line, loss));
    if (scores.features.defined()) write_tensors(*root_.evaluate.features_out, {{"features", scores.features}});
  });
}

// The picture of several guidance scales, of the model that was scored last.
void Evaluation::write_sweep(Json model) const {
  model["protocol"] = protocol();
  const auto page = render_sweep(name_of(model), file_->sweep_of(model));
  if (page) write_file_atomically(job_.out / "sweep.html", *page);
}

}  // namespace millrace
