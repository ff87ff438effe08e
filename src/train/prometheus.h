#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

// The numbers of a line of metrics.jsonl in Prometheus' text format (exposition format 0.0.4): millrace_FIELD, of
// fields that only grow millrace_FIELD_total, of objects with a label `of`. All carry the label `run`. No timestamps,
// which node exporter's textfile collector refuses. Nulls are NaN.
std::string prometheus_text(const nlohmann::ordered_json& line, const std::string& run);

// Keeps such a file up to date. Where it cannot be written the run goes on; the first time that is told.
class PrometheusFile {
 public:
  PrometheusFile(std::filesystem::path path, std::string run) : path_(std::move(path)), run_(std::move(run)) {}
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  std::string run_;
  bool fails_ = false;
};

}  // namespace millrace
