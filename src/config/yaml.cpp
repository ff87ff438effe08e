#include "yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <utility>

#include "millrace/core/error.h"

namespace millrace::config {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_copied_mib = 16;

std::size_t count_text(const Node& node) {
  std::size_t bytes = node.name.size() + node.text.size();
  for (const Node& child : node.children) bytes += count_text(child);
  return bytes;
}

// Builds the tree from the parser's events: the document API of yaml-cpp keeps only one of two equal keys, and says
// nothing.
class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& source, bool with_lines, std::vector<Problem>& problems)
      : source_(source), with_lines_(with_lines), problems_(problems) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(at(mark, Node()), anchor); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    const bool is_text = tag == "!" || tag == "tag:yaml.org,2002:str";
    add(at(mark, is_text ? Node::string(value) : Node::scalar(value)), anchor);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) {
      problems_.push_back({origin(mark), "an alias inside its own anchor"});
      return add(at(mark, Node()), YAML::NullAnchor);
    }
    count_copy(known->second);
    add(known->second, YAML::NullAnchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open_.push_back({at(mark, Node::list()), anchor, {}, {}});
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check_tag(mark, tag);
    open_.push_back({at(mark, Node::map()), anchor, {}, {}});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor;
    std::optional<Node> key;    // of a map: waits for its value
    std::optional<Node> merge;  // of a map: a map or a list of maps that stood behind `<<`
  };

  // `!= A` without quotes is the value A with the tag `!=`: what stands before A must not be lost.
  void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!" || tag.starts_with("tag:yaml.org,2002:")) return;
    problems_.push_back({origin(mark), fmt::format("'{}' is a YAML tag of no meaning here; put quotes around it and "
                                                   "what belongs to it",
                                                   tag)});
  }

  std::string origin(const YAML::Mark& mark) const {
    return with_lines_ ? fmt::format("{}:{}", source_, mark.line + 1) : source_;
  }

  Node at(const YAML::Mark& mark, Node node) const {
    node.origin = origin(mark);
    return node;
  }

  // An anchor keeps a copy, and each alias is one.
  void count_copy(const Node& node) {
    nodes_ += count_nodes(node);
    copied_bytes_ += count_text(node);
    if (copied_bytes_ > most_copied_mib << 20)
      throw Problem{node.origin, fmt::format("anchors and aliases make more than {} MiB of text", most_copied_mib)};
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    if (done.merge) merge_keys(done.node, std::move(*done.merge));
    add(std::move(done.node), done.anchor);
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (++nodes_ > max_nodes) throw Problem{node.origin, fmt::format("more than {} values", max_nodes)};
    if (anchor != YAML::NullAnchor) {
      count_copy(node);
      anchors_[anchor] = node;
    }
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().node.kind == Node::Kind::list) {
      open_.back().node.children.push_back(std::move(node));
    } else if (!open_.back().key) {
      open_.back().key = std::move(node);
    } else {
      add_pair(open_.back(), *std::exchange(open_.back().key, std::nullopt), std::move(node));
    }
  }

  // YAML 1.1's `<<: *anchor` and `<<: [*a, *b]`: a map's own keys win, then those of earlier maps.
  static void merge_keys(Node& map, Node merge) {
    if (merge.kind == Node::Kind::list) {
      for (Node& part : merge.children) merge_keys(map, std::move(part));
      return;
    }
    for (Node& child : merge.children)
      if (!map.find(child.name)) map.children.push_back(std::move(child));
  }

  static bool can_merge(const Node& value) {
    const auto is_map = [](const Node& node) { return node.kind == Node::Kind::map; };
    return is_map(value) || (value.kind == Node::Kind::list && std::ranges::all_of(value.children, is_map));
  }

  void add_merge(Open& open, const Node& key, Node value) {
    if (open.merge) {
      problems_.push_back({key.origin, fmt::format("duplicate key '{}', first at {}", key.text, open.merge->origin)});
    } else if (!can_merge(value)) {
      problems_.push_back({key.origin, fmt::format("'<<' takes a map or a list of maps, not {}", value.show())});
    } else {
      value.origin = key.origin;
      open.merge = std::move(value);
    }
  }

  void add_pair(Open& open, const Node& key, Node value) {
    Node& map = open.node;
    if (key.kind == Node::Kind::list || key.kind == Node::Kind::map) {
      problems_.push_back({key.origin, "a key must be a word, not " + key.show()});
    } else if (key.text == "<<" && !key.quoted) {
      add_merge(open, key, std::move(value));
    } else if (const Node* first = map.find(key.text)) {
      problems_.push_back({key.origin, fmt::format("duplicate key '{}', first at {}", key.text, first->origin)});
    } else {
      value.name = key.text;
      map.children.push_back(std::move(value));
    }
  }

  const std::string& source_;
  const bool with_lines_;
  std::vector<Problem>& problems_;
  Node root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchors_;
  std::size_t nodes_ = 0, copied_bytes_ = 0;
};

bool is_any_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// Text that another YAML reader would take for null, a boolean, a number, a date or a merge if it had no quotes.
bool needs_quotes(std::string_view text) {
  if (text.empty()) return true;
  if (is_digit(text[0]) ||
      (text.size() > 1 && std::string_view("+-.").find(text[0]) != text.npos && is_digit(text[1]))) {
    return true;
  }
  return is_any_of(text, {"~",    "null",  "Null",  "NULL",  "true",  "True",  "TRUE",  "false", "False", "FALSE",
                          "yes",  "Yes",   "YES",   "no",    "No",    "NO",    "on",    "On",    "ON",    "off",
                          "Off",  "OFF",   "y",     "n",     "Y",     "N",     "=",     "<<",    ".inf",  ".Inf",
                          ".INF", "-.inf", "-.Inf", "-.INF", "+.inf", "+.Inf", "+.INF", ".nan",  ".NaN",  ".NAN"});
}

// A literal "${" comes back as text only with a backslash, and backslashes before it only when doubled.
std::string escape_references(const std::string& text) {
  std::string out;
  std::size_t backslashes = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) out.append(backslashes + 1, '\\');
    backslashes = text[i] == '\\' ? backslashes + 1 : 0;
    out += text[i];
  }
  return out;
}

Node parse_document(const std::string& text, const std::string& source, bool with_lines,
                    std::vector<Problem>& problems) {
  TreeBuilder builder(source, with_lines, problems);
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  parser.HandleNextDocument(builder);
  Node tree = builder.take();
  if (parser.HandleNextDocument(builder)) problems.push_back({source, "more than one YAML document"});
  return tree;
}

constexpr int max_quoted = 100;

// yaml-cpp does not read `{dir: ???}`, which PyYAML does: quotes around the mark that it stumbled over. False when it
// stumbled over something else.
bool quote_missing_mark(std::string& text, const YAML::Mark& mark) {
  std::size_t begin = 0;
  for (int line = 0; line < mark.line; ++line) begin = text.find('\n', begin) + 1;  // 0 again when there is none
  begin += static_cast<std::size_t>(std::max(mark.column, 0));
  if (begin > text.size() || text.compare(begin, 3, "???") != 0) return false;
  text.insert(begin + 3, "\"").insert(begin, "\"");
  return true;
}

void emit(YAML::Emitter& out, const Node& node, bool with_origins, bool flow) {
  switch (node.kind) {
    case Node::Kind::null:
      out.WriteIntegralType("null");  // YAML::Null is ~ before yaml-cpp 0.7, and this text is compared
      break;
    case Node::Kind::scalar:
      if (node.quoted && needs_quotes(node.text)) out << YAML::DoubleQuoted;
      out << escape_references(node.text);
      break;
    case Node::Kind::list:
      out << YAML::Flow << YAML::BeginSeq;
      for (const Node& child : node.children) emit(out, child, false, true);
      out << YAML::EndSeq;
      break;
    case Node::Kind::map:
      if (flow || node.children.empty()) out << YAML::Flow;
      out << YAML::BeginMap;
      for (const Node& child : node.children) {
        out << YAML::Key;
        if (child.name == "<<") out << YAML::DoubleQuoted;
        out << child.name << YAML::Value;
        emit(out, child, with_origins, flow);
      }
      out << YAML::EndMap;
      break;
  }
  const bool is_leaf = node.kind != Node::Kind::map || node.children.empty();
  if (with_origins && is_leaf) out << YAML::Comment(node.origin);
}

Json to_json(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::scalar: {
      if (node.quoted) return escape_references(node.text);
      const Json value = Json::parse(node.text, nullptr, false);
      return value.is_number() || value.is_boolean() ? value : Json(escape_references(node.text));
    }
    case Node::Kind::list: {
      Json list = Json::array();
      for (const Node& child : node.children) list.push_back(to_json(child));
      return list;
    }
    case Node::Kind::map:
      break;
  }
  Json map = Json::object();
  for (const Node& child : node.children) map[child.name] = to_json(child);
  return map;
}

}  // namespace

std::optional<std::string_view> unquoted(std::string_view text) {
  const bool quoted = text.size() >= 2 && (text[0] == '\'' || text[0] == '"') && text.back() == text[0];
  return quoted ? std::optional(text.substr(1, text.size() - 2)) : std::nullopt;
}

std::size_t count_nodes(const Node& node) {
  std::size_t count = 1;
  for (const Node& child : node.children) count += count_nodes(child);
  return count;
}

Node parse_yaml(std::string text, const std::string& source, bool with_lines, std::vector<Problem>& problems) {
  for (int quoted = 0; true; ++quoted) {
    std::vector<Problem> found;
    Node tree;
    try {
      tree = parse_document(text, source, with_lines, found);
    } catch (const YAML::Exception& error) {
      if (quoted < max_quoted && quote_missing_mark(text, error.mark)) continue;
      found.push_back(
          {with_lines ? fmt::format("{}:{}", source, error.mark.line + 1) : source, "not YAML: " + error.msg});
    } catch (const Problem& problem) {
      found.push_back(problem);
    }
    problems.insert(problems.end(), found.begin(), found.end());
    return tree;
  }
}

std::string emit_yaml(const Node& node, bool with_origins) {
  YAML::Emitter out;
  emit(out, node, with_origins, false);
  return std::string(out.c_str()) + "\n";
}

std::string emit_flow(const Node& node) {
  YAML::Emitter out;
  emit(out, node, false, true);
  return out.c_str();
}

std::string emit_json(const Node& node) {
  try {
    return to_json(node).dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    throw Error(Exit::usage, "the configuration holds text that is not UTF-8, which JSON cannot",
                "rename that folder or file");
  }
}

}  // namespace millrace::config
