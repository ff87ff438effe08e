#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// What a pipeline, or a folder of pictures, is known by in the file, however it was spelled and from whichever folder.
std::filesystem::path place_of_model(const std::filesystem::path& path);

// Of the raw weights of a checkpoint that has an EMA, too. All other lines are of what an export takes.
bool is_of_raw_weights(const nlohmann::ordered_json& line);

// OUT/evaluation.jsonl: a line for each set of pictures that was scored.
class EvaluationFile {
 public:
  // Reads what is there; a last line that was cut short is left out. Error(io) naming the line that is no object.
  explicit EvaluationFile(std::filesystem::path file);

  // The same model (by digest), weights, guidance scale and protocol have been scored.
  bool holds(const nlohmann::ordered_json& line) const;
  // What there is of the same model under the same protocol, at any guidance scale; the lowest first.
  std::vector<nlohmann::ordered_json> sweep_of(const nlohmann::ordered_json& line) const;
  // Adds a line, in place of one for the same step, weights and guidance scale, and writes the whole file anew: a
  // reader sees all of a line or nothing.
  void put(nlohmann::ordered_json line);

 private:
  std::filesystem::path file_;
  std::vector<nlohmann::ordered_json> lines_;
};

}  // namespace millrace
