#include "millrace/core/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

struct Quantity {
  double number;
  std::string_view word;  // what follows the number, without spaces around it
};

// The number may be 550_000, as other numbers of a configuration.
std::optional<Quantity> split(std::string_view text) {
  text = trim(text);
  std::string plain(text);
  std::erase(plain, '_');
  double number = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  const auto rest = static_cast<std::size_t>(plain.data() + plain.size() - end);  // a word has no underscores
  return Quantity{number, trim(text.substr(text.size() - rest))};
}

double power_of_1000(char prefix) {
  switch (prefix) {
    case 'k':
      return 1e3;
    case 'M':
      return 1e6;
    case 'G':
      return 1e9;
    case 'T':
      return 1e12;
    default:
      return 1;
  }
}

// "G samples" -> 1e9 and leaves "samples". A lone "M" counts as a prefix, the M of a word such as "MiB" does not.
double take_prefix(std::string_view& word) {
  if (word.empty() || (word.size() > 1 && !std::isspace(static_cast<unsigned char>(word[1])))) return 1;
  const double factor = power_of_1000(word[0]);
  if (factor > 1) word = trim(word.substr(1));
  return factor;
}

// A number times a power of ten, which a binary fraction may miss by its last digits: 16.1k is 16100.
double scaled(double number, double factor) {
  const double product = number * factor, whole = std::round(product);
  return std::abs(product - whole) < 1e-9 * whole ? whole : product;
}

struct DurationWord {
  std::string_view word;
  Duration::Unit unit;
  double factor;
};

constexpr DurationWord duration_words[] = {
    {"", Duration::Unit::steps, 1},           {"step", Duration::Unit::steps, 1},
    {"steps", Duration::Unit::steps, 1},      {"sample", Duration::Unit::samples, 1},
    {"samples", Duration::Unit::samples, 1},  {"s", Duration::Unit::seconds, 1},
    {"sec", Duration::Unit::seconds, 1},      {"second", Duration::Unit::seconds, 1},
    {"seconds", Duration::Unit::seconds, 1},  {"min", Duration::Unit::seconds, 60},
    {"minute", Duration::Unit::seconds, 60},  {"minutes", Duration::Unit::seconds, 60},
    {"h", Duration::Unit::seconds, 3600},     {"hour", Duration::Unit::seconds, 3600},
    {"hours", Duration::Unit::seconds, 3600}, {"d", Duration::Unit::seconds, 86400},
    {"day", Duration::Unit::seconds, 86400},  {"days", Duration::Unit::seconds, 86400},
};

struct ByteWord {
  std::string_view word;
  double factor;
};

constexpr double kib = 1024, mib = kib * 1024, tib = gib * 1024;
constexpr ByteWord byte_words[] = {
    {"", 1},     {"B", 1},     {"bytes", 1}, {"kB", 1e3},  {"KB", 1e3},  {"MB", 1e6},
    {"GB", 1e9}, {"TB", 1e12}, {"KiB", kib}, {"MiB", mib}, {"GiB", gib}, {"TiB", tib},
};

// At most three digits that matter: 2.46, 24.6, 246.
std::string three_digits(double x) {
  return fmt::format("{:.{}f}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0);
}

// Whole numbers without exponent, others with as many digits as they need to come back the same.
std::string exact(double x) {
  return x == std::floor(x) && x < 1e15 ? fmt::format("{:.0f}", x) : fmt::format("{}", x);
}

std::string seconds_to_string(double seconds) {
  constexpr std::array<std::pair<double, const char*>, 3> units{{{86400, "d"}, {3600, "h"}, {60, "min"}}};
  for (const auto& [factor, name] : units) {
    if (seconds >= factor && std::fmod(seconds, factor) == 0)
      return fmt::format("{} {}", exact(seconds / factor), name);
  }
  return fmt::format("{} s", exact(seconds));
}

}  // namespace

Duration parse_duration(std::string_view text) {
  if (auto quantity = split(text)) {
    const double factor = take_prefix(quantity->word);
    for (const auto& known : duration_words) {
      if (quantity->word == known.word) return {scaled(quantity->number, factor * known.factor), known.unit};
    }
    if (quantity->word.starts_with("epoch"))
      throw Error(Exit::usage, fmt::format("'{}': there is no unit of passes over the data", text),
                  "multiply: rows of the data times passes, as in '5000000 samples'");
  }
  throw Error(Exit::usage, fmt::format("'{}' is not a duration", text),
              "write a number and a unit, such as '550000 steps', '1.1G samples', '30 s', '20 min', '4 h' or '2 d'");
}

std::string to_string(const Duration& duration) {
  switch (duration.unit) {
    case Duration::Unit::steps:
      return exact(duration.count) + " steps";
    case Duration::Unit::samples:
      return exact(duration.count) + " samples";
    case Duration::Unit::seconds:
      break;
  }
  return seconds_to_string(duration.count);
}

std::optional<double> to_steps(const Duration& duration, std::int64_t global_batch) {
  switch (duration.unit) {
    case Duration::Unit::steps:
      return duration.count;
    case Duration::Unit::samples:
      return duration.count / static_cast<double>(global_batch);
    case Duration::Unit::seconds:
      break;
  }
  return std::nullopt;
}

std::uint64_t parse_bytes(std::string_view text) {
  if (const auto quantity = split(text)) {
    for (const auto& known : byte_words) {
      const double bytes = quantity->number * known.factor;
      if (quantity->word == known.word && bytes < 0x1p63) return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  throw Error(Exit::usage, fmt::format("'{}' is not a size in bytes", text),
              "write a number and a unit, such as '512', '10 kB', '32 MiB' or '1.5 GB'");
}

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB", "PiB"}) {
    if (value < 1023.5) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, unit);
}

std::string format_count(double n) {
  if (std::abs(n) < 1000) return fmt::format("{:.3g}", n);
  double value = std::abs(n);
  char prefix = ' ';
  for (const char next : {'k', 'M', 'G', 'T'}) {
    if (value < 999.5) break;
    value /= 1000;
    prefix = next;
  }
  return fmt::format("{}{}{}", n < 0 ? "-" : "", three_digits(value), prefix);
}

std::string format_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}:{:02}", days, hours, minutes);
  return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
}

}  // namespace millrace
