#include "override.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstddef>
#include <optional>

#include "millrace/core/text.h"
#include "path.h"

namespace millrace::config {

namespace {

Node list_item(std::string_view text) {
  const auto item = trim(text);
  const auto inner = unquoted(item);
  return inner ? Node::string(std::string(*inner)) : Node::scalar(std::string(item));
}

// Behind a letter, or alone, it is an apostrophe.
bool opens_quote(std::string_view text, std::size_t at) {
  const bool is_behind_letter = at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]));
  return !is_behind_letter && text.find(text[at], at + 1) != text.npos;
}

// "[a,{b,c}.tar]" has two items.
Node parse_list(std::string_view text) {
  Node list = Node::list();
  const std::string_view inner = text.substr(1, text.size() - 2);
  if (trim(inner).empty()) return list;
  int depth = 0;
  char quote = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= inner.size(); ++i) {
    const char c = i < inner.size() ? inner[i] : ',';
    if (i == inner.size() || (c == ',' && depth == 0 && !quote)) {
      list.children.push_back(list_item(inner.substr(begin, i - begin)));
      begin = i + 1;
    } else if (quote) {
      if (c == quote) quote = 0;
    } else if ((c == '\'' || c == '"') && opens_quote(inner, i)) {
      quote = c;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return list;
}

Node parse_value(const Field* field, const std::string& text, std::vector<Problem>& problems) {
  const std::string_view trimmed = trim(text);
  switch (field ? field->syntax() : Syntax::yaml) {
    case Syntax::list:
      return trimmed.starts_with('[') && trimmed.ends_with(']') ? parse_list(trimmed) : Node::scalar(text);
    case Syntax::text:
      return Node::scalar(text);
    case Syntax::yaml:
    case Syntax::map:
      break;
  }
  return parse_yaml(text, override_origin, false, problems);
}

// Where a path leads: the key it names, and how many of its steps were needed.
struct Target {
  const Key* key = nullptr;
  std::size_t steps = 0;
};

Target find_target(const Section& schema, const Path& path) {
  const Section* section = &schema;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const Section::Entry* entry = section->find(path[i]);
    if (!entry) break;
    if (entry->key) return {entry->key.get(), i + 1};
    section = entry->section.get();
  }
  return {nullptr, path.size()};
}

std::optional<std::string> complaint(const std::string& text, std::size_t equals) {
  if (text.starts_with('~')) return "keys cannot be deleted; set the key to null instead";
  if (equals == text.npos || equals == 0) return "expected KEY=VALUE";
  return std::nullopt;
}

}  // namespace

bool is_of_override(std::string_view origin) {
  return origin == override_origin || origin.ends_with(fmt::format("({})", override_origin));
}

Node parse_override(const Section& schema, const std::string& text, std::vector<Problem>& problems) {
  const std::size_t equals = text.find('=');
  if (const auto wrong = complaint(text, equals)) {
    problems.push_back({override_origin, fmt::format("'{}': {}", text, *wrong)});
    return Node::map();
  }
  std::string_view dotted = std::string_view(text).substr(0, equals);
  while (dotted.starts_with('+'))
    dotted.remove_prefix(1);  // Hydra's sign for a new key; only free-form maps have those
  Path path = split(dotted);
  const Target target = find_target(schema, path);
  const Field* field = target.key ? &target.key->field() : nullptr;

  Node value;
  if (target.steps == path.size()) {
    value = parse_value(field, text.substr(equals + 1), problems);
  } else if (field->syntax() == Syntax::map) {
    // What is left is one key of the map, dots and all.
    const auto rest = path.begin() + static_cast<std::ptrdiff_t>(target.steps);
    *rest = fmt::format("{}", fmt::join(rest, path.end(), "."));
    path.resize(target.steps + 1);
    if (equals + 1 == text.size()) {
      problems.push_back(
          {override_origin, fmt::format("{} has no value; null takes the entry away, and < and > need quotes to get "
                                        "past a shell: '{}>=3'",
                                        dotted, text)});
      return Node::map();
    }
    value = Node::scalar(text.substr(equals + 1));
  } else {
    problems.push_back(
        {override_origin,
         fmt::format("{}: {} is a {} and is set as a whole", dotted,
                     join({path.begin(), path.begin() + static_cast<std::ptrdiff_t>(target.steps)}), field->type())});
    return Node::map();
  }

  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    Node parent = Node::map();
    value.name = *step;
    parent.children.push_back(std::move(value));
    value = std::move(parent);
  }
  value.set_origin(override_origin);
  return value;
}

}  // namespace millrace::config
