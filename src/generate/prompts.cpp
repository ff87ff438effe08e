#include "millrace/generate/prompts.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

void read_row(std::string_view text, const std::string& where, ImageRequest& request) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("prompt") || !json["prompt"].is_string())
    fail(Exit::io, "{}: not a JSON object with a \"prompt\"", where);
  request.prompt = json["prompt"];
  if (json.contains("seed") && !json["seed"].is_number_unsigned())
    fail(Exit::io, "{}: seed {} is not a whole number >= 0", where, json["seed"].dump());
  try {
    request.seed = json.value("seed", request.seed);
    request.negative_prompt = json.value("negative_prompt", request.negative_prompt);
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: {}", where, error.what());
  }
}

}  // namespace

std::vector<ImageRequest> read_prompts(const std::filesystem::path& file, const ImageRequest& fallback) {
  constexpr auto kinds = "a text file with a prompt a line, or a .jsonl file of objects with a \"prompt\"";
  for (const char* table : {".csv", ".tsv", ".json", ".parquet"})
    if (file.extension() == table)
      throw Error(Exit::usage, fmt::format("prompts: {} is no list of prompts", file.string()), kinds);
  std::ifstream in(file);
  if (!in) throw Error(Exit::io, fmt::format("prompts: {} cannot be read", file.string()), kinds);
  std::vector<ImageRequest> requests;
  std::int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    ImageRequest request{line, fallback.negative_prompt, fallback.seed + requests.size()};
    if (file.extension() == ".jsonl") read_row(line, fmt::format("{}, line {}", file.string(), number), request);
    request.prompt = valid_utf8(request.prompt);
    requests.push_back(std::move(request));
  }
  if (requests.empty()) fail(Exit::io, "prompts: {} holds none", file.string());
  return requests;
}

}  // namespace millrace
