#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// A number over steps. What was null is NaN.
struct Series {
  std::vector<std::int64_t> steps;
  std::vector<double> values;
};

// A fault, a start, a stop, a step back, or what a rank complained of; complaints that differ in numbers and names
// alone are one event.
struct Event {
  std::string when;  // date and time in UTC; the time of the day, as the log has it, of versions that wrote no dates
  std::string what;  // in the words of the first time
  int count = 1;
  std::string last = {};    // when it came again for the last time
  bool is_warning = false;  // of many of these some may be left out
};

struct SamplesPicture {
  std::int64_t step;
  std::filesystem::path file;
};

// Settings that a run's own are compared with.
struct Template {
  std::string name;
  std::map<std::string, std::string> settings;  // by dotted key
};

// What a run folder tells, as far as it is there.
struct RunRecord {
  std::filesystem::path folder;
  std::string name;
  std::map<std::string, Series> metrics;          // of metrics.jsonl; objects' numbers as FIELD/KEY
  std::string begin, end;                         // `time` of its first and last line
  std::map<std::string, std::string> settings;    // of config.yaml, by dotted key
  Template base = {};                             // template.yaml; without a name where there is none
  nlohmann::json state;                           // STATE, or null
  nlohmann::json ledger;                          // ledger.json, or null
  nlohmann::json environment;                     // environment.json, or null
  std::optional<std::int64_t> newest_start_step;  // first line of the start that environment.json is of
  nlohmann::json model;                           // config.json of the network, of the newest checkpoint; or null
  std::vector<nlohmann::json> evaluations;        // lines of evaluation.jsonl
  std::vector<nlohmann::json> starts;             // lines of starts.jsonl; none of versions that wrote no such file
  std::vector<SamplesPicture> pictures;           // samples/step-*.png, in the order of steps
  std::vector<Event> events;                      // in the order of their first time

  const Series& series(const std::string& field) const;  // empty where there is none
  double last(const std::string& field) const;           // NaN where there is none
  std::string setting(const std::string& key) const;     // empty where there is none
};

// Reads while a run writes: a last line that is cut short is left out, of a step that stands there twice the later line
// counts. Error(io) where `folder` is no run: neither metrics.jsonl nor config.yaml.
RunRecord read_run(const std::filesystem::path& folder);

// Gives runs of equal names as much of the folders above them as tells them apart.
void tell_apart(std::vector<RunRecord>& runs);

}  // namespace millrace
