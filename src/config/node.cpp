#include "millrace/config/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "millrace/core/secrets.h"

namespace millrace::config {

Node Node::scalar(std::string text) {
  Node node;
  node.kind = Kind::scalar;
  node.text = std::move(text);
  return node;
}

Node Node::string(std::string text) {
  Node node = scalar(std::move(text));
  node.quoted = true;
  return node;
}

Node Node::list() {
  Node node;
  node.kind = Kind::list;
  return node;
}

Node Node::map() {
  Node node;
  node.kind = Kind::map;
  return node;
}

void Node::set_origin(const std::string& of_all) {
  origin = of_all;
  for (Node& child : children) child.set_origin(of_all);
}

bool Node::is_null() const {
  if (kind != Kind::scalar || quoted) return kind == Kind::null;
  return text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL";
}

bool Node::is_missing() const {
  return kind == Kind::scalar && text == "???";
}

const Node* Node::find(std::string_view key) const {
  const auto found =
      std::find_if(children.begin(), children.end(), [&](const Node& child) { return child.name == key; });
  return kind == Kind::map && found != children.end() ? &*found : nullptr;
}

Node* Node::find(std::string_view key) {
  return const_cast<Node*>(std::as_const(*this).find(key));
}

// ": '0.9', '1'", of a few values.
static std::string show_items(const Node& list) {
  constexpr std::size_t most = 4;
  const bool are_values =
      std::ranges::all_of(list.children, [](const Node& item) { return item.kind == Node::Kind::scalar; });
  if (list.children.empty() || list.children.size() > most || !are_values) return "";
  std::string items;
  for (const Node& item : list.children) items += (items.empty() ? ": " : ", ") + item.show();
  return items;
}

std::string Node::show() const {
  constexpr std::size_t longest = 80;
  switch (kind) {
    case Kind::null:
      return "null";
    case Kind::scalar: {
      const auto shown = without_secrets(text);  // first: half a secret is not known as one
      return shown.size() <= longest ? fmt::format("'{}'", shown) : fmt::format("'{}...'", shown.substr(0, longest));
    }
    case Kind::list:
      return fmt::format("a list of {}{}", children.size(), show_items(*this));
    case Kind::map:
      break;
  }
  return "a map";
}

}  // namespace millrace::config
