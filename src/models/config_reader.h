#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/nn/activation.h"

namespace millrace {

// What no network here has more of: a file that tells of more would only fill memory.
constexpr std::int64_t most_channels = 1 << 16;  // and of all else that has no limit of its own
constexpr std::int64_t most_layers = 1000;       // of a level, or of transformers behind each other
constexpr std::int64_t most_levels = 16;
constexpr std::int64_t most_tokens = 1 << 20;
constexpr std::int64_t most_kernel = 64;  // pixels of a kernel, a patch or a margin
constexpr std::int64_t most_side = 4096;  // of a picture, or of latents

bool is_whole(const nlohmann::json& value, std::int64_t least, std::int64_t most);

// Reads a component's config.json key by key. Every error names file and key (Error(io)); null means the default, as
// absence does; `finish` warns about keys that nobody asked for.
class ConfigReader {
 public:
  // `file` is only for messages.
  ConfigReader(const nlohmann::json& source, std::string file);

  // From 0 and from 1 up to `most`.
  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t most = most_channels);
  std::int64_t positive(std::string_view key, std::int64_t fallback, std::int64_t most = most_channels);
  double number(std::string_view key, double fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  nn::Activation activation(std::string_view key, const std::string& fallback);
  // At most most_levels of them.
  std::vector<std::int64_t> positives(std::string_view key, std::vector<std::int64_t> fallback,
                                      std::int64_t most = most_channels);
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> fallback);

  // One value for all levels, or a list with one for each.
  std::vector<std::int64_t> positive_per_level(std::string_view key, std::int64_t fallback, std::size_t levels,
                                               std::int64_t most = most_channels);
  std::vector<bool> boolean_per_level(std::string_view key, bool fallback, std::size_t levels);

  // Refuses what another class of diffusers wrote, whose keys mean something else; Flax's twin has the same keys.
  void check_class(std::string_view name);
  // The raw value; nothing when absent or null.
  const nlohmann::json* find(std::string_view key);
  // Neither absent nor null nor false.
  bool is_set(std::string_view key);
  // Keys that change nothing in the network.
  void ignore(std::initializer_list<std::string_view> keys);
  // Keys of networks we do not build: they must not be set.
  void refuse(std::initializer_list<std::string_view> keys, std::string_view why);
  [[noreturn]] void fail_key(std::string_view key, std::string_view why) const;
  void warn_key(std::string_view key, std::string_view what) const;
  void finish() const;

 private:
  const nlohmann::json& source_;
  std::string file_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace millrace
