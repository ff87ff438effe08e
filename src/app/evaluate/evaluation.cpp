#include "evaluate/evaluation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <utility>

#include "evaluate/captions.h"
#include "evaluate/image_folder.h"
#include "evaluate/sweep_page.h"
#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/image/decode.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/models/tensors.h"
#include "millrace/nn/device.h"
#include "output.h"

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
  add_score("clip_score_std", scores.clip_score_std);
  if (scores.reference_pictures) line["reference_images"] = *scores.reference_pictures;
  if (!loss) return;
  const auto finite_or_null = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  line["loss_mean"] = finite_or_null(loss->mean);
  for (const auto& bucket : loss->by_timestep) line["loss"][bucket.name()] = finite_or_null(bucket.mean);
  if (!loss->unweighted) return;
  line["loss_mean_unweighted"] = finite_or_null(*loss->unweighted);
  for (const auto& bucket : loss->by_timestep)
    line["loss_unweighted"][bucket.name()] = finite_or_null(bucket.unweighted);
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
  number("clip_score_std", "std", "{:.2f}");
  if (loss) text += fmt::format("  loss {:.5f}", loss->mean);
  if (loss && loss->unweighted) text += fmt::format("  without weights {:.5f}", *loss->unweighted);
  const auto count = [&](const char* key) { return line[key].get<std::int64_t>(); };
  if (line.contains("reference_images"))
    text += fmt::format("  ({} pictures, {} of the reference)", count("images"), count("reference_images"));
  else if (line.contains("images"))
    text += fmt::format("  ({} pictures)", count("images"));
  return text;
}

// Before the work: a run may be somebody else's.
void make_output_folders(const fs::path& out, const fs::path& pictures) {
  std::error_code error;
  fs::create_directories(pictures, error);
  for (const auto& folder : {out, pictures})
    if (!error && ::access(folder.c_str(), W_OK) != 0) error = {errno, std::generic_category()};
  if (error)
    throw Error(Exit::io, fmt::format("cannot write scores to {}: {}", out.string(), error.message()),
                "say --out FOLDER, one that can be written to");
}

}  // namespace

std::string name_of(const Json& line) {
  auto name = line.contains("step") ? fmt::format("step {}", line["step"].get<std::int64_t>())
                                    : line["checkpoint"].get<std::string>();
  if (is_of_raw_weights(line)) name += " (raw weights)";
  if (line.contains("guidance_scale")) name += fmt::format(", scale {}", line["guidance_scale"].get<double>());
  return name;
}

Evaluation::Evaluation(const Session& session, const EvaluateRoot& root, const EvaluateJob& job)
    : session_(session),
      root_(root),
      job_(job),
      arithmetic_{session.device, parse_dtype(root.model.dtype, session.device)} {
  const auto& prompts = root.evaluate.prompts;
  on_root(world(), [&] {  // before they are read: what replaces one of them meanwhile was not scored
    if (root.measures_pictures()) contents_ = name_contents(root.evaluate);
  });
  on_all(world(), [&] {
    if (prompts) list_ = read_captions(*prompts);
    if (job.source == EvaluateJob::Source::images) {
      pictures_ = list_images(job.path);
      if (root.evaluate.wants(Metric::clip)) captions_ = captions_of(pictures_, list_);
      check_count(std::ssize(pictures_), "--images", job.path.string());
    } else if (root.measures_pictures()) {
      check_count(painted(), "evaluate.prompts", *prompts);
    }
  });
  if (session.is_root()) {
    warn_of_prompts();
    warn_of_order();
  }
  if (root.measures_pictures()) scorer_.emplace(session, root.evaluate);
  on_root(world(), [&] {
    make_output_folders(job.out, folder());
    if (root.evaluate.features_out) check_features_file(*root.evaluate.features_out);
  });
  lease_.emplace(RunLease::acquire(world(), folder()));
  on_root(world(), [&] { file_.emplace(job.out / run_file::evaluations); });
}

std::int64_t Evaluation::painted() const {
  return std::min<std::int64_t>(root_.evaluate.count, std::ssize(list_.captions));
}

// What others would make of the file, and what it lacks.
void Evaluation::warn_of_prompts() const {
  const auto& c = root_.evaluate;
  const bool paints = root_.measures_pictures() && job_.source != EvaluateJob::Source::images;
  if (!c.prompts || !(paints || c.wants(Metric::clip))) return;
  const auto ignored = ignored_columns(list_, paints);
  if (!ignored.empty())
    log::warning(
        "evaluate.prompts: {}: its {} count for nothing here: captions are those of `caption` where it is there, "
        "pictures are painted with the seeds evaluate.seed + n and generate.negative_prompt; `millrace generate` heeds "
        "them, and --images scores its pictures",
        *c.prompts, fmt::join(ignored, ", "));
  if (paints && painted() < c.count)
    log::warning("evaluate.prompts: {} holds {} captions, fewer than evaluate.count = {}: so many are painted",
                 *c.prompts, painted(), c.count);
}

Json Evaluation::protocol(const ScoredModel& model) const {
  return protocol_of(root_, contents_, painted(), model);
}

// Distances are between distributions, of which one picture tells nothing.
void Evaluation::check_count(std::int64_t pictures, const char* key, const std::string& path) const {
  if (pictures < 2 && (root_.evaluate.wants(Metric::fid) || root_.evaluate.wants(Metric::kid)))
    throw Error(Exit::usage, fmt::format("{} {}: FID and KID need two pictures, and there is one", key, path),
                "evaluate.metrics=[clip] takes one");
}

// Captions that are paired with pictures by order, of which nothing tells whether it is the same.
void Evaluation::warn_of_order() const {
  if (captions_.empty() || names_any(pictures_, list_)) return;
  if (!list_.files.empty())
    log::warning(
        "evaluate.prompts: no row names a picture of {} in its column file: captions go by the order of the names",
        job_.path.string());
  if (list_.captions.size() > pictures_.size())
    log::warning(
        "evaluate.prompts holds {} captions for {} pictures: the first ones are taken; where pictures are missing in "
        "between, a column file that names each caption's picture pairs them",
        list_.captions.size(), pictures_.size());
  if (const auto late = find_late_number(pictures_))
    log::warning(
        "--images {}: captions are paired in byte order of the names, in which {} comes behind larger numbers: leading "
        "zeros, or a column file in evaluate.prompts, pair them as they were counted",
        job_.path.string(), late->filename().string());
}

void Evaluation::score_images() {
  const auto count = std::ssize(pictures_);
  const auto scores = scorer_->score(count, captions_, "scoring", [&](std::int64_t begin, std::int64_t end) {
    std::vector<Image> images;
    for (auto i = begin; i < end; ++i) images.push_back(read_image(pictures_[static_cast<std::size_t>(i)]));
    return images;
  });
  put({{"checkpoint", place_of_model(job_.path).string()}, {"protocol", protocol_of(root_, contents_, count, {})}},
      scores, {});
}

void Evaluation::score_pipeline() {
  const auto pipeline = open_pipeline(world(), job_.path.string());
  std::optional<Painter> painter;
  ScoredModel model;
  on_all(world(), [&] {
    painter.emplace(pipeline, root_.tokenizer.chosen(), arithmetic_);
    const auto [height, width] = painter->picture_size(root_.generate);
    model.painting = Painting{.sampler = sampler_class(pipeline.scheduler(), root_.generate),
                              .height = height,
                              .width = width,
                              .dtype = dtype_name(arithmetic_.dtype),
                              .tokenizer = root_.tokenizer.chosen()};
  });
  score_model({{"checkpoint", place_of_model(job_.path).string()}, {"protocol", protocol(model)}}, *painter, {});
}

void Evaluation::score_model(const Json& model, Painter& painter, const std::optional<ValidationLoss>& loss) {
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
bool Evaluation::holds(const Json& line) const {
  return !root_.evaluate.features_out && file_->holds(line);
}

bool Evaluation::is_held(const Json& line) const {
  return broadcast_from_root(world(), [&] { return holds(line); });
}

Scores Evaluation::paint_and_score(Painter& painter, const Json& line, double scale) {
  auto generate = root_.generate;
  generate.guidance_scale = scale;
  generate.batch_size = root_.evaluate.batch_size;
  return scorer_->score(painted(), list_.captions, fmt::format("painting {}", name_of(line)),
                        [&](std::int64_t begin, std::int64_t end) {
                          std::vector<ImageRequest> requests;
                          for (auto n = begin; n < end; ++n)
                            requests.push_back({list_.captions[static_cast<std::size_t>(n)], generate.negative_prompt,
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
  auto name = line.contains("step") ? step_name(line["step"]) : "pipeline";
  if (is_of_raw_weights(line)) name += "-raw";
  write_png(folder() / fmt::format("{}-scale-{}.png", name, line["guidance_scale"].get<double>()),
            make_grid(images, captions));
}

void Evaluation::put(Json line, const Scores& scores, const std::optional<ValidationLoss>& loss) {
  on_root(world(), [&] {
    auto settings = std::move(line["protocol"]);
    line.erase("protocol");
    add(line, scores, loss);
    line["protocol"] = std::move(settings);  // behind the numbers
    if (!lease_->is_ours()) fail(Exit::requeue, "{}", lease_->why_lost());
    file_->put(line);
    print_out(describe(line, loss));
    if (scores.features.defined()) write_tensors(*root_.evaluate.features_out, {{"features", scores.features}});
  });
}

// The picture of several guidance scales, of the model that was scored last.
void Evaluation::write_sweep(const Json& model) const {
  const auto page = render_sweep(name_of(model), file_->sweep_of(model));
  if (page) write_file_atomically(job_.out / "sweep.html", *page);
}

}  // namespace millrace
