#include "millrace/train/progress.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

// Lines up to `last_step`; a last line cut short by a crash is dropped too.
std::string kept_lines(const std::filesystem::path& path, std::int64_t last_step) {
  std::ifstream in(path);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.value("step", std::int64_t{0}) <= last_step) kept += line + "\n";
  }
  return kept;
}

nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::ordered_json stages_json(const StageShares& s) {
  const auto rounded = [](double share) { return std::round(1e4 * share) / 1e4; };
  return {{"read", rounded(s.read)},           {"decode", rounded(s.decode)},
          {"transform", rounded(s.transform)}, {"tokenise", rounded(s.tokenize)},
          {"encode", rounded(s.encode)},       {"encode_wait", rounded(s.encode_wait)},
          {"send", rounded(s.send)},           {"send_wait", rounded(s.send_wait)}};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

std::FILE* open_lines(const std::filesystem::path& path, std::int64_t last_step) {
  if (std::filesystem::exists(path)) write_file_atomically(path, kept_lines(path, last_step));
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file) fail_errno("open", path);
  return file;
}

Progress::Progress(Options options) : options_(std::move(options)) {
  metrics_ = open_lines(options_.run_dir / "metrics.jsonl", options_.resumed_step);
  if (options_.ids) ids_ = open_lines(options_.run_dir / "ids.jsonl", options_.resumed_step);
  if (options_.tensorboard)
    tensorboard_ = std::make_unique<TensorBoardWriter>(options_.run_dir / "tensorboard", options_.resumed_step);
}

Progress::~Progress() {
  log::progress("");
  if (metrics_) std::fclose(metrics_);
  if (ids_) std::fclose(ids_);
}

void Progress::ids(std::int64_t step, const std::vector<std::string>& ids) {
  if (!ids_) return;
  const auto line = nlohmann::ordered_json{{"step", step}, {"ids", ids}}.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), ids_);
}

void Progress::metrics(const Metrics& m) {
  nlohmann::ordered_json json = {{"step", m.step},
                                 {"samples", m.samples},
                                 {"loss", finite_or_null(m.loss)},
                                 {"grad_norm", finite_or_null(m.grad_norm)},
                                 {"lr", m.lr},
                                 {"images_per_second", m.images_per_second},
                                 {"step_ms", m.step_ms},
                                 {"data_wait_ms", m.data_wait_ms},
                                 {"encode_images_per_second", m.encode_images_per_second},
                                 {"queue_fill", m.queue_fill},
                                 {"producer_stages", stages_json(m.stages)},
                                 {"skipped", m.skipped},
                                 {"memory_gib", m.memory_gib},
                                 {"time", utc_now()}};
  if (m.validation_loss) {
    json["validation_loss"] = finite_or_null(*m.validation_loss);
    json["validation_weights"] = m.validated_ema ? "ema" : "raw";
  }
  const auto line = json.dump() + "\n";
  std::fwrite(line.data(), 1, line.size(), metrics_);
  if (tensorboard_) {
    tensorboard_->scalar("train/loss", m.step, m.loss);
    tensorboard_->scalar("train/grad_norm", m.step, m.grad_norm);
    tensorboard_->scalar("train/lr", m.step, m.lr);
    if (m.validation_loss) tensorboard_->scalar("validation/loss", m.step, *m.validation_loss);
    tensorboard_->scalar("speed/images_per_second", m.step, m.images_per_second);
    tensorboard_->scalar("speed/data_wait_ms", m.step, m.data_wait_ms);
    tensorboard_->scalar("speed/encode_images_per_second", m.step, m.encode_images_per_second);
    tensorboard_->scalar("speed/queue_fill", m.step, m.queue_fill);
  }
  flush();

  const auto text = describe(m, options_.total_steps);
  if (log::on_terminal()) {
    log::progress(fmt::format("step {} {}", m.step, text));
    return;
  }
  // Not a terminal: the first lines one by one, later at most one every ten seconds and all with a validation loss; the
  // log's prefix tells the step.
  if (++lines_ <= 3 || m.validation_loss || m.elapsed_seconds - last_line_seconds_ >= 10) {
    log::info("{}", text);
    last_line_seconds_ = m.elapsed_seconds;
  }
}

void Progress::flush() {
  std::fflush(metrics_);
  if (ids_) std::fflush(ids_);
  if (tensorboard_) tensorboard_->flush();
}

std::string describe(const Metrics& m, double total_steps) {
  std::string line;
  if (total_steps > 0) line = fmt::format("of {:.0f} ({:.1f}%) ", total_steps, 100 * m.step / total_steps);
  line += fmt::format("seen {} loss {:.4f} gnorm {:.3f} lr {:.2e} | {:.0f} img/s wait {:.1f}%",
                      format_count(static_cast<double>(m.samples)), m.loss, m.grad_norm, m.lr, m.images_per_second,
                      m.step_ms > 0 ? 100 * m.data_wait_ms / m.step_ms : 0.0);
  if (m.encode_images_per_second > 0)
    line += fmt::format(" | enc {:.0f} img/s q {:.0f}%", m.encode_images_per_second, 100 * m.queue_fill);
  if (m.validation_loss) line += fmt::format(" | val {:.4f}", *m.validation_loss);
  line += fmt::format(" | {:.1f} GiB | elapsed {}", m.memory_gib, format_time(m.elapsed_seconds));
  if (total_steps > 0 && m.step_ms > 0)
    line += fmt::format(" eta {}", format_time((total_steps - m.step) * m.step_ms / 1000));
  if (m.skipped > 0) line += fmt::format(" | {} skipped", m.skipped);
  return line;
}

}  // namespace millrace
