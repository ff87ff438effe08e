#include "millrace/train/progress.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/io/input_file.h"

namespace millrace {
namespace {

bool is_line_up_to(std::string_view line, std::int64_t last_step) {
  if (!line.ends_with('\n')) return false;  // cut short by a crash
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.value("step", std::int64_t{0}) <= last_step;
}

// Where the lines up to `last_step` end. Looked for from the end of the file, which may have gigabytes.
std::uint64_t end_of_lines(const InputFile& file, std::int64_t last_step) {
  constexpr std::uint64_t block = 1 << 20;
  std::uint64_t begin = file.size();
  std::string text;  // from `begin` up to the lines that are known to go
  while (true) {
    const auto newline = text.size() < 2 ? text.npos : text.rfind('\n', text.size() - 2);
    if (newline == text.npos && begin > 0) {
      std::string before(std::min(block, begin), '\0');
      begin -= before.size();
      file.read_at(begin, std::as_writable_bytes(std::span(before)));
      text.insert(0, before);
      continue;
    }
    const std::size_t line = newline == text.npos ? 0 : newline + 1;
    if (text.empty() || is_line_up_to(std::string_view(text).substr(line), last_step)) return begin + text.size();
    text.resize(line);
  }
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

nlohmann::ordered_json by_timestep_json(const ValidationLoss& loss) {
  nlohmann::ordered_json json;
  for (const auto& bucket : loss.by_timestep) json[bucket.name()] = finite_or_null(bucket.mean);
  return json;
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

void drop_lines_beyond(const std::filesystem::path& path, std::int64_t last_step) {
  if (!std::filesystem::exists(path)) return;
  const std::uint64_t end = end_of_lines(InputFile(path.string()), last_step);
  std::error_code error;
  if (end < std::filesystem::file_size(path)) std::filesystem::resize_file(path, end, error);
  if (error) fail(Exit::io, "cannot shorten {}: {}", path.string(), error.message());
}

Progress::Progress(Options options) : options_(std::move(options)) {
  const auto open = [&](std::optional<AppendFile>& file, const char* name) {
    drop_lines_beyond(options_.run_dir / name, options_.resumed_step);
    file.emplace(options_.run_dir / name);
  };
  open(metrics_, "metrics.jsonl");
  if (options_.ids) open(ids_, "ids.jsonl");
  if (options_.tensorboard)
    tensorboard_ = std::make_unique<TensorBoardWriter>(options_.run_dir / "tensorboard", options_.resumed_step);
}

Progress::~Progress() {
  log::progress("");
}

void Progress::ids(std::int64_t step, const std::vector<std::string>& ids) {
  if (!ids_) return;
  ids_->add(nlohmann::ordered_json{{"step", step}, {"ids", ids}}.dump() + "\n");
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
                                 {"straggler", std::round(1e3 * m.straggler) / 1e3},
                                 {"slowest_rank", m.slowest_rank},
                                 {"producer_stages", stages_json(m.stages)},
                                 {"skipped", m.skipped},
                                 {"memory_gib", m.memory_gib},
                                 {"time", utc_now()}};
  if (m.validation) {
    json["validation_loss"] = finite_or_null(m.validation->exported.mean);
    json["validation_weights"] = m.validation->raw ? "ema" : "raw";
    json["validation_loss_by_timestep"] = by_timestep_json(m.validation->exported);
    if (m.validation->raw) {
      json["validation_loss_raw"] = finite_or_null(m.validation->raw->mean);
      json["validation_loss_raw_by_timestep"] = by_timestep_json(*m.validation->raw);
    }
  }
  metrics_->add(json.dump() + "\n");
  if (tensorboard_) {
    tensorboard_->scalar("train/loss", m.step, m.loss);
    tensorboard_->scalar("train/grad_norm", m.step, m.grad_norm);
    tensorboard_->scalar("train/lr", m.step, m.lr);
    if (m.validation) write_validation(m.step, *m.validation);
    tensorboard_->scalar("speed/images_per_second", m.step, m.images_per_second);
    tensorboard_->scalar("speed/data_wait_ms", m.step, m.data_wait_ms);
    tensorboard_->scalar("speed/encode_images_per_second", m.step, m.encode_images_per_second);
    tensorboard_->scalar("speed/queue_fill", m.step, m.queue_fill);
    tensorboard_->scalar("speed/straggler", m.step, m.straggler);
  }
  flush();

  const auto text = describe(m, options_.total_steps);
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

void Progress::write_validation(std::int64_t step, const ValidationLosses& losses) {
  tensorboard_->scalar("validation/loss", step, losses.exported.mean);
  if (losses.raw) tensorboard_->scalar("validation/loss_raw", step, losses.raw->mean);
  for (const auto& bucket : losses.exported.by_timestep)
    if (std::isfinite(bucket.mean)) tensorboard_->scalar("validation_by_timestep/" + bucket.name(), step, bucket.mean);
}

void Progress::flush() {
  metrics_->flush();
  if (ids_) ids_->flush();
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
  if (m.validation) line += fmt::format(" | val {:.4f}", m.validation->exported.mean);
  line += fmt::format(" | {:.1f} GiB | elapsed {}", m.memory_gib, format_time(m.elapsed_seconds));
  if (total_steps > 0 && m.step_ms > 0)
    line += fmt::format(" eta {}", format_time((total_steps - m.step) * m.step_ms / 1000));
  if (m.skipped > 0) line += fmt::format(" | {} skipped", m.skipped);
  return line;
}

}  // namespace millrace
