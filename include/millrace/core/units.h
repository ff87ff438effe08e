#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr double gib = 1 << 30;  // bytes

// A length of training with its unit: "550000 steps", "1.1G samples", "20 min", "30 s", "4 h", "2 d".
struct Duration {
  enum class Unit { steps, samples, seconds };
  double count = 0;
  Unit unit = Unit::steps;

  static Duration steps(double n) { return {n, Unit::steps}; }
  static Duration seconds(double n) { return {n, Unit::seconds}; }
  bool operator==(const Duration&) const = default;
};

// Number with optional k, M, G, T (powers of 1000) and a unit word; throws Error(usage) naming the text.
Duration parse_duration(std::string_view text);
std::string to_string(const Duration& duration);
// A duration in optimizer steps, not rounded: the last one may be only begun. Nothing for a time.
std::optional<double> to_steps(const Duration& duration, std::int64_t global_batch);

// "512", "10 kB", "32 MiB", "1.5 GB"; kB/MB/GB are powers of 1000, KiB/MiB/GiB of 1024.
std::uint64_t parse_bytes(std::string_view text);
std::string format_bytes(std::uint64_t bytes);  // "31.5 MiB"
std::string format_count(double n);             // "2.46M"
std::string format_time(double seconds);        // "0:41:10", "3d 04:10"

}  // namespace millrace
