#pragma once
#include <filesystem>
#include <optional>

namespace millrace {

// Measured throughput of one GPU, in images a second.
struct BenchRates {
  std::optional<double> train, encode;
};

// Reads lines of `millrace bench step --json` and `millrace bench encode --json`, in one file; the last of each counts.
// `micro_batch`: images of a step, for files that tell steps alone; unknown with `auto`. Error(io) naming the file and
// line; Error(usage) if it holds neither, or was measured at another resolution.
BenchRates read_bench_rates(const std::filesystem::path& file, std::optional<int> micro_batch, int resolution);

}  // namespace millrace
