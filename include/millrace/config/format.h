#pragma once
#include <fmt/format.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/config/node.h"
#include "millrace/core/units.h"

// How each C++ type is written in a configuration: Format<T> knows its name in --help, reads it from a Node, writes it
// back.
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

// A text, or a list of texts.
struct OneOrMore {
  std::vector<std::string> values;
  OneOrMore() = default;
  OneOrMore(std::string one) : values{std::move(one)} {}
  OneOrMore(const char* one) : values{one} {}
  OneOrMore(std::vector<std::string> several) : values(std::move(several)) {}
  bool operator==(const OneOrMore&) const = default;
};

// A size with its unit: "32 MiB".
struct Bytes {
  std::uint64_t value = 0;
  operator std::uint64_t() const { return value; }
  bool operator==(const Bytes&) const = default;
};

// The value does not fit the key's type; caught by `load` and reported with key and origin.
struct BadValue {
  std::string message;
};

[[noreturn]] void expected(std::string_view what, const Node& found);

// Plain text of a scalar, or BadValue naming what was expected.
const std::string& scalar_text(const Node& node, std::string_view what);

// The value of a text key: ~/ in front is the home folder ($HOME), which a shell leaves as it is behind `key=`.
std::string text_value(const Node& node, std::string_view what);

// How the text of an override is read.
enum class Syntax {
  yaml,
  text,  // as it is
  list,  // [x,y] or a single value
  map,   // as YAML; behind KEY.NAME= as it is
};

template <class T>
struct Format;

template <>
struct Format<bool> {
  static constexpr Syntax syntax = Syntax::yaml;
  std::string type() const { return "true or false"; }
  void read(const Node& node, bool& out) const;
  Node write(bool value) const { return Node::scalar(value ? "true" : "false"); }
  std::vector<double> numbers(bool) const { return {}; }
};

// The bits of a whole number from `low` to `high`.
std::uint64_t read_integer(const Node& node, std::int64_t low, std::uint64_t high);

template <std::integral T>
struct Format<T> {
  static constexpr Syntax syntax = Syntax::yaml;
  std::string type() const { return "whole number"; }
  void read(const Node& node, T& out) const {
    out = static_cast<T>(read_integer(node, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
  Node write(T value) const { return Node::scalar(std::to_string(value)); }
  std::vector<double> numbers(T value) const { return {static_cast<double>(value)}; }
};

template <>
struct Format<double> {
  static constexpr Syntax syntax = Syntax::yaml;
  std::string type() const { return "number"; }
  void read(const Node& node, double& out) const;
  Node write(double value) const;
  std::vector<double> numbers(double value) const { return {value}; }
};

template <>
struct Format<std::string> {
  static constexpr Syntax syntax = Syntax::text;
  std::string type() const { return "text"; }
  void read(const Node& node, std::string& out) const { out = text_value(node, type()); }
  Node write(const std::string& value) const { return Node::string(value); }
  std::vector<double> numbers(const std::string&) const { return {}; }
};

template <>
struct Format<Required> {
  static constexpr Syntax syntax = Syntax::text;
  std::string type() const { return "text"; }
  void read(const Node& node, Required& out) const {
    out = {text_value(node, type()), true};
    if (out.value.empty()) expected(type(), node);
  }
  Node write(const Required& value) const { return value.set ? Node::string(value.value) : Node::scalar("???"); }
  std::vector<double> numbers(const Required&) const { return {}; }
};

template <>
struct Format<Duration> {
  static constexpr Syntax syntax = Syntax::yaml;
  std::string type() const { return "duration"; }
  void read(const Node& node, Duration& out) const;
  Node write(const Duration& value) const { return Node::scalar(to_string(value)); }
  std::vector<double> numbers(const Duration& value) const { return {value.count}; }
};

template <>
struct Format<Bytes> {
  static constexpr Syntax syntax = Syntax::yaml;
  std::string type() const { return "size in bytes"; }
  void read(const Node& node, Bytes& out) const;
  Node write(Bytes value) const;
  std::vector<double> numbers(Bytes value) const { return {static_cast<double>(value.value)}; }
};

// Free-form: any keys, scalar values kept as the text that was written.
template <>
struct Format<std::map<std::string, std::string>> {
  static constexpr Syntax syntax = Syntax::map;
  std::string type() const { return "map of text"; }
  void read(const Node& node, std::map<std::string, std::string>& out) const;
  Node write(const std::map<std::string, std::string>& value) const;
  std::vector<double> numbers(const std::map<std::string, std::string>&) const { return {}; }
};

// One of a list of words. Of several for one value the first is written.
template <class E>
struct EnumFormat {
  static constexpr Syntax syntax = Syntax::yaml;
  std::vector<std::pair<std::string, E>> names;

  std::string type() const {
    std::string words;
    for (const auto& [name, value] : names) words += (words.empty() ? "" : " | ") + name;
    return words;
  }
  void read(const Node& node, E& out) const {
    const std::string& text = scalar_text(node, type());
    for (const auto& [name, value] : names) {
      if (name == text) {
        out = value;
        return;
      }
    }
    expected(type(), node);
  }
  Node write(E value) const {
    for (const auto& [name, candidate] : names) {
      if (candidate == value) return Node::scalar(name);
    }
    return Node::scalar(std::to_string(static_cast<int>(value)));
  }
  std::vector<double> numbers(E) const { return {}; }
};

// null or a value.
template <class T, class Inner = Format<T>>
struct OptionalFormat {
  static constexpr Syntax syntax = Inner::syntax;
  Inner inner;

  std::string type() const { return fmt::format("{} or null", inner.type()); }
  void read(const Node& node, std::optional<T>& out) const {
    if (node.is_null()) {
      out.reset();
    } else {
      inner.read(node, out.emplace());
    }
  }
  Node write(const std::optional<T>& value) const { return value ? inner.write(*value) : Node(); }
  std::vector<double> numbers(const std::optional<T>& value) const {
    return value ? inner.numbers(*value) : std::vector<double>();
  }
};

// auto or a value.
template <class T, class Inner = Format<T>>
struct AutoFormat {
  static constexpr Syntax syntax = Inner::syntax;
  Inner inner;

  std::string type() const { return fmt::format("{} or auto", inner.type()); }
  void read(const Node& node, Auto<T>& out) const {
    if (node.kind == Node::Kind::scalar && node.text == "auto") {
      out.value.reset();
    } else {
      inner.read(node, out.value.emplace());
    }
  }
  Node write(const Auto<T>& value) const { return value.value ? inner.write(*value.value) : Node::scalar("auto"); }
  std::vector<double> numbers(const Auto<T>& value) const {
    return value.value ? inner.numbers(*value.value) : std::vector<double>();
  }
};

// A list; a single value stands for a list of one.
template <class T, class Inner = Format<T>>
struct ListFormat {
  static constexpr Syntax syntax = Syntax::list;
  Inner inner;

  std::string type() const { return "list of " + inner.type(); }
  void read(const Node& node, std::vector<T>& out) const {
    if (node.is_null() || node.kind == Node::Kind::map) expected(type(), node);
    out.clear();
    if (node.kind == Node::Kind::scalar) {
      inner.read(node, out.emplace_back());
      return;
    }
    for (const Node& child : node.children) inner.read(child, out.emplace_back());
  }
  Node write(const std::vector<T>& values) const {
    Node node = Node::list();
    for (const T& value : values) node.children.push_back(inner.write(value));
    return node;
  }
  std::vector<double> numbers(const std::vector<T>& values) const {
    std::vector<double> all;
    for (const T& value : values) {
      for (const double number : inner.numbers(value)) all.push_back(number);
    }
    return all;
  }
};

// A list of exactly N values.
template <class T, std::size_t N>
struct Format<std::array<T, N>> {
  static constexpr Syntax syntax = Syntax::list;
  Format<T> inner;

  std::string type() const { return "list of " + std::to_string(N) + " x " + inner.type(); }
  void read(const Node& node, std::array<T, N>& out) const {
    if (node.kind != Node::Kind::list || node.children.size() != N) expected(type(), node);
    for (std::size_t i = 0; i < N; ++i) inner.read(node.children[i], out[i]);
  }
  Node write(const std::array<T, N>& values) const {
    Node node = Node::list();
    for (const T& value : values) node.children.push_back(inner.write(value));
    return node;
  }
  std::vector<double> numbers(const std::array<T, N>& values) const { return {values.begin(), values.end()}; }
};

template <>
struct Format<OneOrMore> {
  static constexpr Syntax syntax = Syntax::list;
  ListFormat<std::string> inner;

  std::string type() const { return "text or list of text"; }
  void read(const Node& node, OneOrMore& out) const {
    inner.read(node, out.values);
    if (out.values.empty()) expected(type(), node);
  }
  Node write(const OneOrMore& value) const {
    return value.values.size() == 1 ? Node::string(value.values.front()) : inner.write(value.values);
  }
  std::vector<double> numbers(const OneOrMore&) const { return {}; }
};

template <class T>
struct Format<std::optional<T>> : OptionalFormat<T> {};
template <class T>
struct Format<Auto<T>> : AutoFormat<T> {};
template <class T>
struct Format<std::vector<T>> : ListFormat<T> {};

// The enum inside E, Auto<E>, std::optional<E>, std::vector<E>, and the format that reads it by name.
template <class T>
struct EnumIn {
  using Enum = T;
  static EnumFormat<T> format(EnumFormat<T> names) { return names; }
};
template <class E>
struct EnumIn<std::optional<E>> {
  using Enum = E;
  static OptionalFormat<E, EnumFormat<E>> format(EnumFormat<E> names) { return {std::move(names)}; }
};
template <class E>
struct EnumIn<Auto<E>> {
  using Enum = E;
  static AutoFormat<E, EnumFormat<E>> format(EnumFormat<E> names) { return {std::move(names)}; }
};
template <class E>
struct EnumIn<std::vector<E>> {
  using Enum = E;
  static ListFormat<E, EnumFormat<E>> format(EnumFormat<E> names) { return {std::move(names)}; }
};

}  // namespace millrace::config
