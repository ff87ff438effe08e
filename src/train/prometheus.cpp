#include "prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/train/metrics.h"

namespace millrace {
namespace {

std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return text;
}

std::string header(std::string_view name, std::string_view help, std::string_view type) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

std::string exported_name(const MetricField& field) {
  return fmt::format("millrace_{}{}", field.name, field.only_grows ? "_total" : "");
}

std::string label_of(const std::string& run) {
  return fmt::format("run=\"{}\"", escaped(run));
}

std::string number(const nlohmann::ordered_json& value) {
  return value.is_null() ? "NaN" : value.dump();
}

}  // namespace

std::string prometheus_text(const nlohmann::ordered_json& line, const std::string& run, bool is_running) {
  const auto run_label = label_of(run);
  std::string text;
  for (const auto& field : metric_fields()) {
    const auto found = line.find(std::string(field.name));
    if (found == line.end()) continue;
    const auto name = exported_name(field);
    text += header(name, field.help, field.only_grows ? "counter" : "gauge");
    if (!found->is_object()) {
      text += fmt::format("{}{{{}}} {}\n", name, run_label, number(*found));
      continue;
    }
    for (const auto& [key, value] : found->items())
      text += fmt::format("{}{{{},of=\"{}\"}} {}\n", name, run_label, escaped(key), number(value));
  }
  return text + header("millrace_running", "1 while the run trains, 0 once it has ended in order.", "gauge") +
         fmt::format("millrace_running{{{}}} {}\n", run_label, is_running ? 1 : 0);
}

void PrometheusFile::go_on() try {
  std::istringstream text(read_file(path_));
  for (std::string line; std::getline(text, line);)
    for (const auto& field : metric_fields()) {
      const auto start = fmt::format("{}{{{}}} ", exported_name(field), label_of(run_));
      if (!field.only_grows || !line.starts_with(start)) continue;
      auto value = nlohmann::ordered_json::parse(line.substr(start.size()), nullptr, /*allow_exceptions=*/false);
      if (value.is_number()) line_[std::string(field.name)] = std::move(value);
    }
} catch (const Error&) {  // the first one
}

// What was measured last stays, until it is measured again: scrapers come more rarely than lines.
void PrometheusFile::write(nlohmann::ordered_json line) {
  for (auto& [name, value] : line_.items())
    if (name.starts_with("validation_") && !line.contains(name)) line[name] = std::move(value);
  for (const auto& field : metric_fields()) {
    const std::string name(field.name);
    if (field.only_grows && line_.contains(name) && line.contains(name)) line[name] = std::max(line_[name], line[name]);
  }
  line_ = std::move(line);
  publish(/*is_running=*/true);
}

void PrometheusFile::publish(bool is_running) try {
  write_file_atomically(path_, prometheus_text(line_, run_, is_running));
  if (std::exchange(fails_, false)) log::info("{} is written again", path_.string());
} catch (const Error& error) {
  if (!std::exchange(fails_, true)) log::warning("log.prometheus: {}; training goes on without it", error.what());
}

}  // namespace millrace
