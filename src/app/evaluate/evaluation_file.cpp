#include "evaluate/evaluation_file.h"

#include <algorithm>
#include <sstream>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

bool same(const Json& a, const Json& b, const char* key) {
  const bool in_a = a.contains(key), in_b = b.contains(key);
  return in_a == in_b && (!in_a || a[key] == b[key]);
}

fs::path path_of(const Json& line) {
  const auto found = line.find("checkpoint");
  if (found == line.end() || !found->is_string() || found->get_ref<const std::string&>().empty()) return {};
  return place_of_model(found->get<std::string>());
}

// A step's checkpoint may have become another one, and a run may have moved with its checkpoints; another run's is
// another one.
bool is_of_same_model(const Json& a, const Json& b) {
  return same(a, b, "step") && is_of_raw_weights(a) == is_of_raw_weights(b) &&
         (path_of(a) == path_of(b) || (a.contains("step") && same(a, b, "digest")));
}

bool is_of_same_pictures(const Json& a, const Json& b) {
  return is_of_same_model(a, b) && same(a, b, "guidance_scale");
}

}  // namespace

fs::path place_of_model(const fs::path& path) {
  return normal_path(path);
}

bool is_of_raw_weights(const Json& line) {
  const auto weights = line.find("weights");
  return weights != line.end() && *weights == "raw";
}

EvaluationFile::EvaluationFile(std::filesystem::path file) : file_(std::move(file)) {
  if (!fs::exists(file_)) return;
  const auto text = read_file(file_);
  std::istringstream in(text);
  std::size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty()) continue;
    auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) {
      lines_.push_back(std::move(json));
    } else if (!in.eof()) {
      fail(Exit::io, "{}, line {}: not a JSON object", file_.string(), number);
    }
  }
}

bool EvaluationFile::holds(const Json& line) const {
  return std::ranges::any_of(lines_, [&](const Json& other) {
    return is_of_same_pictures(line, other) && same(line, other, "digest") && same(line, other, "protocol");
  });
}

std::vector<Json> EvaluationFile::sweep_of(const Json& line) const {
  std::vector<Json> sweep;
  for (const auto& other : lines_)
    if (is_of_same_model(line, other) && same(line, other, "digest") && same(line, other, "protocol") &&
        other.contains("guidance_scale"))
      sweep.push_back(other);
  std::ranges::sort(sweep, {}, [](const Json& each) { return each["guidance_scale"].get<double>(); });
  return sweep;
}

void EvaluationFile::put(Json line) {
  std::erase_if(lines_, [&](const Json& other) { return is_of_same_pictures(line, other); });
  lines_.push_back(std::move(line));
  std::string text;
  for (const auto& each : lines_) text += dump_any(each) + "\n";
  write_file_atomically(file_, text);
}

}  // namespace millrace
