#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millrace {

// A number over steps. What was null is NaN.
struct Series {
  std::vector<std::int64_t> steps;
  std::vector<double> values;
};

struct Event {
  std::string when;  // as the file has it; may be empty
  std::string what;
};

struct SamplesPicture {
  std::int64_t step;
  std::filesystem::path file;
};

// What a run folder tells, as far as it is there.
struct RunRecord {
  std::filesystem::path folder;
  std::string name;
  std::map<std::string, Series> metrics;        // of metrics.jsonl; objects' numbers as FIELD/KEY
  std::string begin, end;                       // `time` of its first and last line
  std::map<std::string, std::string> settings;  // of config.yaml, by dotted key
  nlohmann::json state;                         // STATE, or null
  nlohmann::json ledger;                        // ledger.json, or null
  std::vector<nlohmann::json> evaluations;      // lines of evaluation.jsonl
  std::vector<SamplesPicture> pictures;         // samples/step-*.png, in the order of steps
  std::vector<Event> events;                    // faults, and warnings of rank 0's log

  const Series& series(const std::string& field) const;  // empty where there is none
  double last(const std::string& field) const;           // NaN where there is none
};

// Reads while a run writes: a last line that is cut short is left out, of a step that stands there twice the later line
// counts. Error(io) where `folder` is no run: neither metrics.jsonl nor config.yaml.
RunRecord read_run(const std::filesystem::path& folder);

// The dotted keys of YAML as config.yaml has it: a key a line, two spaces a level.
std::map<std::string, std::string> flatten_settings(const std::string& yaml);

}  // namespace millrace
