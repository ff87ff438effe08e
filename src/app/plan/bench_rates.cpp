#include "plan/bench_rates.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace {
namespace {

struct BenchLine {
  nlohmann::json json;
  std::string place;  // "FILE, line N"
};

// "" if the line has no such field.
std::string text_in(const BenchLine& line, const char* key) {
  const auto found = line.json.find(key);
  if (found == line.json.end()) return "";
  if (!found->is_string()) fail(Exit::io, "plan.rates: {}: {} is no text", line.place, key);
  return found->get<std::string>();
}

// As `millrace bench --json` prints them, or the same in one array.
std::vector<BenchLine> read_bench_lines(const std::filesystem::path& file) {
  const auto parse = [](const std::string& text) {
    return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  };
  const auto whole = read_file(file);
  std::vector<BenchLine> lines;
  const auto add = [&](nlohmann::json json, const char* what, std::size_t number) {
    lines.push_back({std::move(json), fmt::format("{}, {} {}", file.string(), what, number)});
  };
  if (const auto array = parse(whole); array.is_array()) {
    for (const auto& entry : array) add(entry, "entry", lines.size() + 1);
    return lines;
  }
  std::istringstream in(whole);
  std::size_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (!text.empty()) add(parse(text), "line", number);
  }
  return lines;
}

double number_in(const BenchLine& line, const char* key, double fallback) {
  const auto found = line.json.find(key);
  if (found == line.json.end()) return fallback;
  if (!found->is_number()) fail(Exit::io, "plan.rates: {}: {} is no number", line.place, key);
  return found->get<double>();
}

// Images a second, where the line tells them, or steps of a known size.
std::optional<double> images_per_second(const BenchLine& line, std::optional<int> micro_batch) {
  const auto unit = text_in(line, "unit");
  const auto median = number_in(line, "median", 0);
  if (unit == "images/s" || unit == "samples/s") return median;
  if (unit == "steps/s" && micro_batch) return median * *micro_batch;
  return std::nullopt;
}

}  // namespace

BenchRates read_bench_rates(const std::filesystem::path& file, std::optional<int> micro_batch, int resolution) {
  BenchRates rates;
  bool tells_steps = false;
  for (const auto& line : read_bench_lines(file)) {
    if (!line.json.is_object()) fail(Exit::io, "plan.rates: {}: not a JSON object", line.place);
    tells_steps |= text_in(line, "unit") == "steps/s";
    const auto rate = images_per_second(line, micro_batch);
    if (!rate) continue;
    if (!(*rate > 0)) fail(Exit::io, "plan.rates: {}: the rate must be above 0", line.place);
    if (const auto measured = number_in(line, "resolution", resolution); measured != resolution)
      throw Error(Exit::usage,
                  fmt::format("plan.rates: {}: measured at {} px, and transform.resolution is {}", line.place, measured,
                              resolution),
                  "keep a file of rates for each resolution: give `millrace bench` the run's own --config");
    const auto bench = text_in(line, "bench");
    if (bench == "step") rates.train = rate;
    if (bench == "encode") rates.encode = rate;
  }
  if (!rates.train && tells_steps && !micro_batch)
    throw Error(
        Exit::usage,
        fmt::format("plan.rates: {} tells steps, and batch.micro=auto not how many images these have", file.string()),
        "give the batch.micro that `millrace bench step` had, or keep its line of images a second");
  if (!rates.train && !rates.encode)
    throw Error(Exit::usage, fmt::format("plan.rates: {} holds no rates", file.string()),
                "it is to hold what `millrace bench step --json` and `millrace bench encode --json` print");
  return rates;
}

}  // namespace millrace
