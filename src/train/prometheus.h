#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

// The numbers of a line of metrics.jsonl in Prometheus' text format (exposition format 0.0.4): millrace_FIELD, of
// fields that only grow millrace_FIELD_total, of objects with a label `of`. All carry the label `run`. No timestamps,
// which node exporter's textfile collector refuses. Nulls are NaN. The last one, millrace_running, is 0 once the run
// has ended in order, so that an alert can tell a run that stands still from one that is done: the file stays.
std::string prometheus_text(const nlohmann::ordered_json& line, const std::string& run, bool is_running);

// Keeps such a file up to date. If it cannot be written the run goes on; the first failure is a warning.
class PrometheusFile {
 public:
  PrometheusFile(std::filesystem::path path, std::string run) : path_(std::move(path)), run_(std::move(run)) {}
  // For a run that resumes from a checkpoint. It counts steps again that an earlier life has counted, and to Prometheus
  // a counter that falls has restarted at 0: so fields that only grow keep the value in the file until they exceed it.
  void go_on();
  void write(nlohmann::ordered_json line);
  // Writes the last line again, of a run that has ended.
  void end() { publish(/*is_running=*/false); }

 private:
  void publish(bool is_running);

  std::filesystem::path path_;
  std::string run_;
  nlohmann::ordered_json line_ = nlohmann::ordered_json::object();  // the last one
  bool fails_ = false;
};

}  // namespace millrace
