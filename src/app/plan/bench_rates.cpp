#include "plan/bench_rates.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace {
namespace {

// Images a second, where the line tells them, or steps of a known size.
std::optional<double> images_per_second(const nlohmann::json& line, std::optional<int> micro_batch) {
  const auto unit = line.value("unit", "");
  const auto median = line.value("median", 0.0);
  if (unit == "images/s" || unit == "samples/s") return median;
  if (unit == "steps/s" && micro_batch) return median * *micro_batch;
  return std::nullopt;
}

}  // namespace

BenchRates read_bench_rates(const std::filesystem::path& file, std::optional<int> micro_batch, int resolution) {
  std::istringstream in(read_file(file));
  BenchRates rates;
  bool tells_steps = false;
  int number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (text.empty()) continue;
    const auto line = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) fail(Exit::io, "plan.rates: {}, line {}: not a JSON object", file.string(), number);
    try {
      tells_steps |= line.value("unit", "") == "steps/s";
      const auto rate = images_per_second(line, micro_batch);
      if (!rate) continue;
      if (!(*rate > 0)) fail(Exit::io, "plan.rates: {}, line {}: the rate must be above 0", file.string(), number);
      if (const int measured = line.value("resolution", resolution); measured != resolution)
        throw Error(Exit::usage,
                    fmt::format("plan.rates: {}, line {}: measured at {} px, and transform.resolution is {}",
                                file.string(), number, measured, resolution),
                    "keep a file of rates for each resolution: give `millrace bench` the run's own --config");
      const auto bench = line.value("bench", "");
      if (bench == "step") rates.train = rate;
      if (bench == "encode") rates.encode = rate;
    } catch (const nlohmann::json::exception& error) {
      fail(Exit::io, "plan.rates: {}, line {}: {}", file.string(), number, error.what());
    }
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
