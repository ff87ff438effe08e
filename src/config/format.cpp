#include "millrace/config/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace::config {

namespace {

// YAML allows 1_000_000.
std::string without_underscores(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
  return text;
}

// A 010 is ten to some readers and eight to others, so it is nothing here.
bool has_leading_zero(std::string_view digits) {
  return digits.size() > 1 && digits[0] == '0';
}

// Units throw Error(usage) with a hint of how to write them; here both become one line.
template <class Parse>
auto parse_unit(const Node& node, std::string_view what, Parse parse) {
  const std::string& text = scalar_text(node, what);
  try {
    return parse(text);
  } catch (const Error& error) {
    throw BadValue{fmt::format("{}; {}", error.what(), error.hint())};
  }
}

}  // namespace

void expected(std::string_view what, const Node& found) {
  throw BadValue{fmt::format("expected {}, got {}", what, found.show())};
}

const std::string& scalar_text(const Node& node, std::string_view what) {
  if (node.kind != Node::Kind::scalar) expected(what, node);
  return node.text;
}

std::string text_value(const Node& node, std::string_view what) {
  const std::string& text = scalar_text(node, what);
  if (!text.starts_with("~/")) return text;
  const char* home = std::getenv("HOME");
  if (!home) throw BadValue{fmt::format("{} needs HOME, which is not set", text)};
  return home + text.substr(1);
}

void Format<bool>::read(const Node& node, bool& out) const {
  const std::string& text = scalar_text(node, type());
  for (const char* word : {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}) {
    if (text == word) return void(out = true);
  }
  for (const char* word : {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}) {
    if (text == word) return void(out = false);
  }
  expected(type(), node);
}

std::uint64_t read_integer(const Node& node, std::int64_t low, std::uint64_t high) {
  constexpr std::string_view what = "whole number";
  const std::string text = without_underscores(scalar_text(node, what));
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  const auto magnitude = parse_number<std::uint64_t>(digits);
  if (has_leading_zero(digits) || !magnitude) expected(what, node);
  const std::uint64_t limit = negative ? std::uint64_t{0} - static_cast<std::uint64_t>(low) : high;
  if (*magnitude > limit) throw BadValue{fmt::format("{} is out of range ({} to {})", node.show(), low, high)};
  return negative ? std::uint64_t{0} - *magnitude : *magnitude;
}

void Format<double>::read(const Node& node, double& out) const {
  const std::string text = without_underscores(scalar_text(node, type()));
  const std::string_view number = std::string_view(text).substr(text.starts_with('+') ? 1 : 0);
  const std::string_view digits = number.substr(number.starts_with('-') ? 1 : 0);
  const bool is_whole = std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  const auto value = parse_number<double>(number);
  if ((is_whole && has_leading_zero(digits)) || !value || !std::isfinite(*value)) expected(type(), node);
  out = *value;
}

Node Format<double>::write(double value) const {
  std::string text = fmt::format("{}", value);
  // Other YAML 1.1 readers take 1e-08 for text; they want a point.
  if (const auto exponent = text.find('e'); exponent != text.npos && text.find('.') == text.npos)
    text.insert(exponent, ".0");
  return Node::scalar(text);
}

void Format<Duration>::read(const Node& node, Duration& out) const {
  out = parse_unit(node, type(), [](const std::string& text) { return parse_duration(text); });
}

void Format<Bytes>::read(const Node& node, Bytes& out) const {
  out.value = parse_unit(node, type(), [](const std::string& text) { return parse_bytes(text); });
}

Node Format<Bytes>::write(Bytes value) const {
  constexpr std::pair<std::uint64_t, const char*> units[] = {
      {1ull << 30, "GiB"}, {1ull << 20, "MiB"}, {1ull << 10, "KiB"}};
  for (const auto& [factor, unit] : units) {
    if (value.value >= factor && value.value % factor == 0)
      return Node::scalar(fmt::format("{} {}", value.value / factor, unit));
  }
  return Node::scalar(std::to_string(value.value));
}

void Format<std::map<std::string, std::string>>::read(const Node& node, std::map<std::string, std::string>& out) const {
  if (node.is_null()) return out.clear();
  if (node.kind != Node::Kind::map) expected(type(), node);
  for (const Node& child : node.children) {
    if (child.is_null())
      throw BadValue{fmt::format("'{}' has no value; null takes away what an earlier file has set", child.name)};
    if (child.kind != Node::Kind::scalar)
      throw BadValue{fmt::format("expected text for '{}', got {}", child.name, child.show())};
    out[child.name] = child.text;
  }
}

Node Format<std::map<std::string, std::string>>::write(const std::map<std::string, std::string>& value) const {
  Node node = Node::map();
  for (const auto& [name, text] : value) {
    node.children.push_back(Node::string(text));
    node.children.back().name = name;
  }
  return node;
}

}  // namespace millrace::config
