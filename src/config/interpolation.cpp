#include "interpolation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "millrace/core/secrets.h"
#include "millrace/core/text.h"
#include "path.h"

namespace millrace::config {

namespace {

constexpr std::size_t deepest = 64;        // references inside references
constexpr std::size_t max_text = 1 << 20;  // what references that multiply each other would grow into

// Why a reference has no value; empty when that was reported already.
struct Failure {
  std::string message;
};

// Secrets are hidden in the whole text: what a reference begins in may have been one's beginning.
[[noreturn]] void fail_unclosed(std::string_view text) {
  const auto shown = without_secrets(text);
  const auto begin = shown.rfind("${");
  throw Failure{
      fmt::format("{} lacks a closing brace", Node::scalar(begin == shown.npos ? shown : shown.substr(begin)).show())};
}

// First `wanted` outside of nested braces, from `begin` on.
std::size_t find_outside_braces(std::string_view text, char wanted, std::size_t begin) {
  int depth = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (depth == 0 && text[i] == wanted) return i;
    if (text[i] == '{') ++depth;
    if (text[i] == '}') --depth;
  }
  return text.npos;
}

std::pair<std::string_view, std::optional<std::string_view>> split_default(std::string_view arguments) {
  const std::size_t comma = find_outside_braces(arguments, ',', 0);
  if (comma == arguments.npos) return {trim(arguments), std::nullopt};
  return {trim(arguments.substr(0, comma)), trim(arguments.substr(comma + 1))};
}

// Paths of archives have variables of their own, which look the same.
std::string hint_of_variable(const std::string& name) {
  if (!std::getenv(("WDS_" + name).c_str())) return {};
  return fmt::format("; for the variable WDS_{0} in a path of archives, write \\${{{0}}}", name);
}

class Resolver {
 public:
  Resolver(Node& root, const MergeOver& merge_over, std::vector<Problem>& problems)
      : root_(root), merge_over_(merge_over), problems_(problems) {}

  // The whole subtree of `node`, which stands at `path`.
  void resolve(Node& node, Path& path) {
    if (node.kind == Node::Kind::scalar) return resolve_scalar(node, path);
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      path.push_back(node.kind == Node::Kind::list ? std::to_string(i) : node.children[i].name);
      resolve(node.children[i], path);
      path.pop_back();
    }
  }

 private:
  void resolve_scalar(Node& node, const Path& path) {
    if (node.literal || node.text.find("${") == node.text.npos) return;
    if (std::find(in_progress_.begin(), in_progress_.end(), path) != in_progress_.end()) {
      throw Failure{fmt::format("refers to itself: {} -> {}", show_chain(path), join(path))};
    }
    if (in_progress_.size() >= deepest)
      throw Failure{fmt::format("more than {} references behind each other", deepest)};
    in_progress_.push_back(path);
    const std::size_t depth = depth_;
    std::vector<Node> over = std::exchange(node.over, {});
    try {
      replace(node, expand(node.text, path));
    } catch (const Failure& failure) {
      if (!failure.message.empty())
        problems_.push_back({node.origin, fmt::format("{}: {}", join(path), failure.message)});
      node.broken = node.literal = true;
      depth_ = depth;
      over.clear();
    }
    in_progress_.pop_back();
    if (over.empty()) return;
    merge_over_(node, path, std::move(over));
    Path here = path;
    resolve(node, here);
  }

  // From the first time that `path` was asked for.
  std::string show_chain(const Path& path) const {
    std::vector<std::string> chain;
    for (auto i = std::find(in_progress_.begin(), in_progress_.end(), path); i != in_progress_.end(); ++i) {
      chain.push_back(join(*i));
    }
    return fmt::format("{}", fmt::join(chain, " -> "));
  }

  void replace(Node& node, Node value) {
    nodes_ += count_nodes(value);
    if (nodes_ > max_nodes) throw Failure{fmt::format("the references multiply to more than {} values", max_nodes)};
    value.name = node.name;
    value.set_origin(value.origin.starts_with("env ") ? fmt::format("{} ({})", value.origin, node.origin)
                                                      : node.origin);
    value.literal = true;
    node = std::move(value);
  }

  // The value of a text with references: of any kind when the text is one reference, else text.
  Node expand(std::string_view text, const Path& path) {
    std::string out;
    std::size_t position = 0;
    for (std::size_t begin; (begin = text.find("${", position)) != text.npos;) {
      std::size_t backslashes = 0;
      while (begin - backslashes > position && text[begin - backslashes - 1] == '\\') ++backslashes;
      append(out, text.substr(position, begin - backslashes - position));
      out.append(backslashes / 2, '\\');
      position = begin + 2;
      if (backslashes % 2 == 1) {
        append(out, "${");
        continue;
      }
      const std::size_t end = find_outside_braces(text, '}', position);
      if (end == text.npos) fail_unclosed(text);
      Node value = evaluate(text.substr(position, end - position), path);
      if (begin == 0 && end + 1 == text.size()) return value;
      append(out, text_of(value, text.substr(begin, end + 1 - begin)));
      position = end + 1;
    }
    append(out, text.substr(position));
    return Node::string(out);
  }

  static void append(std::string& out, std::string_view text) {
    out += text;
    if (out.size() > max_text) throw Failure{"the references multiply to more than a MiB of text"};
  }

  static std::string text_of(const Node& value, std::string_view reference) {
    if (value.kind == Node::Kind::null) return "null";
    if (value.kind != Node::Kind::scalar) throw Failure{fmt::format("{} is {}, not text", reference, value.show())};
    return value.text;
  }

  std::string expand_text(std::string_view text, const Path& path) { return text_of(expand(text, path), text); }

  // What stands between ${ and }.
  Node evaluate(std::string_view inner, const Path& path) {
    if (++depth_ > deepest) throw Failure{fmt::format("more than {} references inside each other", deepest)};
    const std::size_t colon = find_outside_braces(inner, ':', 0);
    Node value = colon == inner.npos ? copy_of(expand_text(trim(inner), path), path)
                                     : call(trim(inner.substr(0, colon)), inner.substr(colon + 1), path);
    --depth_;
    return value;
  }

  Node call(std::string_view resolver, std::string_view arguments, const Path& path) {
    if (resolver == "oc.env") return environment(arguments, path);
    if (resolver == "oc.decode") return decode(expand_text(trim(arguments), path));
    if (resolver == "oc.select") return select(arguments, path);
    throw Failure{fmt::format("unknown resolver '{}'; there are oc.env, oc.decode and oc.select", resolver)};
  }

  Node environment(std::string_view arguments, const Path& path) {
    const auto [name_text, fallback] = split_default(arguments);
    const std::string name = expand_text(name_text, path);
    if (const char* value = std::getenv(name.c_str())) {
      Node node = Node::scalar(value);
      node.origin = "env " + name;
      return node;
    }
    if (!fallback) throw Failure{fmt::format("the environment variable {} is not set", name)};
    return default_value(*fallback, path);
  }

  Node select(std::string_view arguments, const Path& path) {
    const auto [key_text, fallback] = split_default(arguments);
    const std::string key = expand_text(key_text, path);
    Path target;
    const Node* node = find(key, path, target);
    if (node && !node->is_missing()) return *node;
    return fallback ? default_value(*fallback, path) : Node();
  }

  Node default_value(std::string_view text, const Path& path) {
    if (const auto inner = unquoted(text)) return Node::string(expand_text(*inner, path));
    if (text.find("${") != text.npos) return expand(text, path);
    return Node::scalar(std::string(text));
  }

  static Node decode(std::string_view argument) {
    const std::string text(unquoted(argument).value_or(argument));
    std::vector<Problem> problems;
    Node node = parse_yaml(text, "oc.decode", false, problems);
    if (!problems.empty()) throw Failure{fmt::format("oc.decode of '{}': {}", text, problems.front().text)};
    return node;
  }

  Node copy_of(const std::string& reference, const Path& path) {
    Path target;
    const Node* node = find(reference, path, target);
    if (!node)
      throw Failure{
          fmt::format("${{{}}}: there is no key '{}'{}", reference, join(target), hint_of_variable(reference))};
    if (node->broken) throw Failure{};
    if (node->is_missing()) throw Failure{fmt::format("${{{}}}: {} must be set first", reference, join(target))};
    return *node;
  }

  // The resolved node that `reference`, standing at `path`, means; nullptr when there is none. Its path goes to
  // `target`.
  Node* find(std::string_view reference, const Path& path, Path& target) {
    target = start_of(reference, path);
    const Path steps = split(reference);
    target.insert(target.end(), steps.begin(), steps.end());
    Node* node = &root_;
    Path here;
    for (const std::string& step : target) {
      if (node->kind == Node::Kind::scalar) resolve_scalar(*node, here);
      node = child_of(*node, step);
      if (!node) return nullptr;
      here.push_back(step);
    }
    resolve(*node, here);
    return node;
  }

  // One dot means the map that holds the key, each further dot one level up; the dots are taken off `reference`.
  static Path start_of(std::string_view& reference, const Path& path) {
    std::size_t dots = 0;
    while (dots < reference.size() && reference[dots] == '.') ++dots;
    if (dots > path.size()) throw Failure{fmt::format("${{{}}} goes up beyond the top", reference)};
    reference.remove_prefix(dots);
    return dots == 0 ? Path() : Path(path.begin(), path.end() - static_cast<std::ptrdiff_t>(dots));
  }

  static Node* child_of(Node& node, const std::string& step) {
    if (node.kind == Node::Kind::map) return node.find(step);
    const bool is_index = !step.empty() && step.size() < 7 && step.find_first_not_of("0123456789") == step.npos;
    if (node.kind != Node::Kind::list || !is_index) return nullptr;
    const std::size_t index = std::stoul(step);
    return index < node.children.size() ? &node.children[index] : nullptr;
  }

  Node& root_;
  const MergeOver& merge_over_;
  std::vector<Problem>& problems_;
  std::vector<Path> in_progress_;
  std::size_t depth_ = 0;
  std::size_t nodes_ = 0;
};

}  // namespace

void resolve_references(Node& root, const MergeOver& merge_over, std::vector<Problem>& problems) {
  Path path;
  Resolver(root, merge_over, problems).resolve(root, path);
}

bool is_reference(const Node& node) {
  return node.kind == Node::Kind::scalar && !node.literal && node.text.starts_with("${") &&
         find_outside_braces(node.text, '}', 2) == node.text.size() - 1;
}

}  // namespace millrace::config
