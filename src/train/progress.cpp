#include "millrace/train/progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "millrace/checkpoint/line_files.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/image/png.h"
#include "millrace/image/resize_image.h"
#include "prometheus.h"
#include "tensorboard.h"

namespace millrace {
namespace {

constexpr std::size_t most_ids_waiting = 8 << 20;  // bytes, far below what AppendFile keeps
// Viewers read all pictures of a run at their start; samples/ has them in full.
constexpr int widest_in_tensorboard = 1024, jpeg_quality = 85;

Image at_most_as_wide(const Image& image, int width) {
  if (image.width <= width) return image;
  return resize_image(image, width, std::max(1, static_cast<int>(std::int64_t{image.height} * width / image.width)));
}

// The folder's own name, whatever stands behind it.
std::string name_of(const std::filesystem::path& run_dir) {
  return normal_path(run_dir).filename().string();
}

// Markdown that shows `text` as it is.
std::string as_code(std::string_view text) {
  std::string code = "    ";
  for (const char c : text) code += c == '\n' ? "\n    " : std::string(1, c);
  return code;
}

}  // namespace

Progress::Progress(Options options) : options_(std::move(options)) {
  cut_line_files(options_.run_dir, options_.resumed_step, options_.begins_elsewhere);
  metrics_.emplace(options_.run_dir / run_file::metrics);
  if (options_.ids) ids_.emplace(options_.run_dir / run_file::ids);
  if (options_.tensorboard)
    tensorboard_ = std::make_unique<TensorBoardWriter>(
        options_.run_dir / run_file::tensorboard, options_.resumed_step,
        ending_of_try(options_.run_dir, options_.begins_elsewhere ? 0 : options_.resumed_step));
  if (tensorboard_ && std::filesystem::exists(options_.run_dir / run_file::config))
    tensorboard_->text("config", options_.resumed_step + 1, as_code(read_file(options_.run_dir / run_file::config)));
  if (options_.prometheus)
    prometheus_ = std::make_unique<PrometheusFile>(*options_.prometheus, name_of(options_.run_dir));
  if (prometheus_ && options_.resumed_step > 0) prometheus_->go_on();
}

Progress::~Progress() {
  log::progress("");
  try {
    flush();  // or not, where the folder is another's
  } catch (const std::exception&) {
  }
}

void Progress::ids(std::int64_t step, const std::vector<std::string>& ids) {
  if (!ids_) return;
  ids_->add(nlohmann::ordered_json{{"step", step}, {"ids", ids}}.dump() + "\n");
  if (ids_->waiting() > most_ids_waiting) flush();  // lines of metrics may be far apart
}

void Progress::metrics(const Metrics& m) {
  const auto line = metrics_line(m);
  metrics_->add(line.dump() + "\n");
  if (tensorboard_) write_tensorboard(line);
  flush();
  if (prometheus_) prometheus_->write(line);

  const auto text = describe(m, options_.total_steps, step_seconds(m));
  if (log::on_terminal()) {
    log::progress(fmt::format("step {} {}", m.step, text));
    return;
  }
  // Not a terminal: the first lines one by one, later at most one every ten seconds and all with a validation loss; the
  // log's prefix tells the step.
  if (++lines_ <= 3 || m.validation || m.elapsed_seconds - last_line_seconds_ >= 10) {
    log::info("{}", text);
    last_line_seconds_ = m.elapsed_seconds;
  }
}

// Since the first line of this process; 0 = this is it.
double Progress::step_seconds(const Metrics& m) {
  if (first_step_ == 0) first_step_ = m.step, first_seconds_ = m.elapsed_seconds;
  return m.step == first_step_ ? 0 : (m.elapsed_seconds - first_seconds_) / static_cast<double>(m.step - first_step_);
}

void Progress::end() {
  if (prometheus_) prometheus_->end();
}

std::filesystem::path Progress::picture(const std::string& kind, std::int64_t step, const Image& image) {
  if (tensorboard_) {
    const auto small = at_most_as_wide(image, widest_in_tensorboard);
    tensorboard_->image(kind, step, encode_jpeg(small, jpeg_quality), small.height, small.width);
    tensorboard_->flush();
  }
  const auto path = options_.run_dir / kind / (step_name(step) + ".png");
  std::filesystem::create_directories(path.parent_path());
  write_file_atomically(path, encode_png(image));
  return path;
}

void Progress::write_tensorboard(const nlohmann::ordered_json& line) {
  const auto step = line.at("step").get<std::int64_t>();
  const auto add = [&](const std::string& tag, const nlohmann::ordered_json& value) {
    if (value.is_number()) tensorboard_->scalar(tag, step, value.get<double>());
  };
  for (const auto& field : metric_fields()) {
    const auto found = line.find(std::string(field.name));
    if (found == line.end()) continue;
    if (!found->is_object())
      add(fmt::format("{}/{}", field.group, field.name), *found);
    else
      for (const auto& [key, value] : found->items()) add(fmt::format("{}/{}/{}", field.group, key, field.name), value);
  }
}

void Progress::flush() {
  if (options_.lease && !options_.lease->is_ours()) {
    metrics_->forget();
    if (ids_) ids_->forget();
    return;
  }
  metrics_->flush();
  if (ids_) ids_->flush();
  if (tensorboard_) tensorboard_->flush();
}

void Progress::sync(std::int64_t step) {
  flush();
  const bool has_metrics = metrics_->sync(), has_ids = !ids_ || ids_->sync();
  const bool lacks_lines = !has_metrics || !has_ids;
  if (lacks_lines && !lacks_lines_)
    log::warning("metrics.jsonl or ids.jsonl may lack lines up to the checkpoint of step {}", step);
  lacks_lines_ = lacks_lines;
}

}  // namespace millrace
