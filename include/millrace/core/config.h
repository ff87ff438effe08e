#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/units.h"

// Configuration: plain structs, each with one `describe`, over YAML files and dotted overrides with OmegaConf's semantics.
// From `describe` come parsing, checking, --help, docs/config.md, --print-config, the resolved dump and the diff on resume.
//
//   struct OptimConfig {
//     double lr = 1e-4;
//     std::optional<double> clip = 1.0;      // null
//     Auto<int> threads;                     // auto
//     void describe(config::Section& s) {
//       s.key("lr", lr, "learning rate after the warm-up").at_least(0);
//       s.key("clip", clip, "largest global gradient norm; null = off").above(0);
//     }
//   };
namespace millrace::config {

// "auto" or a value.
template <class T>
struct Auto {
  std::optional<T> value;
  bool is_auto() const { return !value; }
  T value_or(T fallback) const { return value ? *value : fallback; }
  bool operator==(const Auto&) const = default;
};

// A string that must be set: `???` until then.
struct Required {
  std::string value;
  bool set = false;
  operator const std::string&() const { return value; }
  bool operator==(const Required&) const = default;
};

}  // namespace millrace::config
