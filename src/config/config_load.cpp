#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "interpolation.h"
#include "millrace/config/closest.h"
#include "millrace/config/config.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "override.h"
#include "path.h"
#include "yaml.h"

namespace millrace::config {

namespace {

constexpr const char* from_default = "default";

const Section* section_of(const Section* parent, std::string_view name) {
  const Section::Entry* entry = parent ? parent->find(name) : nullptr;
  return entry ? entry->section.get() : nullptr;
}

enum class From { file, argument };

// Maps merge, also with the one that a reference means, which only shows when all is read; everything else is replaced.
// `???` erases nothing, and neither does a section whose lines are all commented out. In free maps null takes away what
// was set before; in a file it has to be there, since an empty value looks the same.
void merge(Node& into, Node from, const Section* section, From source) {
  for (Node& child : from.children) {
    Node* old = into.find(child.name);
    const Section* child_section = section_of(section, child.name);
    const bool is_empty_section = child_section && !child_section->is_optional() && child.is_null();
    const bool takes_away = !section && child.is_null();
    if (!old && child.kind == Node::Kind::map && source == From::argument) {
      old = &into.children.emplace_back(child);
      old->children.clear();
    }
    if (!old) {
      if (!takes_away || source == From::file) into.children.push_back(std::move(child));
    } else if (old->kind == Node::Kind::map && child.kind == Node::Kind::map) {
      merge(*old, std::move(child), child_section, source);
    } else if (child.kind == Node::Kind::map && is_reference(*old)) {
      old->over.push_back(std::move(child));
    } else if (takes_away) {
      std::erase_if(into.children, [&](const Node& entry) { return entry.name == child.name; });
    } else if (!child.is_missing() && !is_empty_section) {
      *old = std::move(child);
    }
  }
}

// Onto what a reference at `path` meant. Where that is no map they take its place.
void merge_onto(const Section& schema, Node& node, const Path& path, std::vector<Node> maps) {
  const Section* section = &schema;
  for (const std::string& step : path) section = section_of(section, step);
  if (node.kind != Node::Kind::map) {
    Node map = Node::map();
    map.name = node.name;
    map.origin = maps.front().origin;
    node = std::move(map);
  }
  for (Node& map : maps) {
    const From source = is_of_override(map.origin) ? From::argument : From::file;
    merge(node, std::move(map), section, source);
  }
}

Node default_of(const Section::Entry& entry) {
  Node node;
  if (entry.key) node = entry.key->write();
  if (entry.section && entry.section->is_engaged()) node = Node::map();
  node.name = entry.name();
  node.origin = from_default;
  node.literal = true;
  return node;
}

// Adds the defaults of all keys that nobody set, so that references find them.
void add_defaults(Node& node, const Section& section) {
  if (node.is_null() && !section.is_optional()) node.kind = Node::Kind::map;  // "optim:" with nothing below it
  if (node.kind != Node::Kind::map) return;
  for (const Section::Entry& entry : section.entries()) {
    if (!node.find(entry.name())) node.children.push_back(default_of(entry));
    if (entry.section) add_defaults(*node.find(entry.name()), *entry.section);
  }
}

void collect_keys(const Section& section, const std::string& path, std::vector<std::string>& keys) {
  for (const Section::Entry& entry : section.entries()) {
    const std::string key = join(path, entry.name());
    keys.push_back(key);
    if (entry.section) collect_keys(*entry.section, key, keys);
  }
}

bool is_broken(const Node& node) {
  return node.broken || std::any_of(node.children.begin(), node.children.end(), is_broken);
}

std::string last_step(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

// The key that was meant: a neighbour with nearly the same name, or the same name in another section; else empty.
std::string closest_key(const Section& schema, const Section& section, const std::string& path,
                        const std::string& name) {
  std::vector<std::string> neighbours;
  for (const Section::Entry& entry : section.entries()) neighbours.push_back(entry.name());
  if (const std::string best = closest(name, neighbours); !best.empty()) return join(path, best);
  std::vector<std::string> keys;
  collect_keys(schema, "", keys);
  const auto same =
      std::find_if(keys.begin(), keys.end(), [&](const std::string& key) { return last_step(key) == name; });
  return same == keys.end() ? "" : *same;
}

// How YAML writes "optim.lr" below `section`: "optim: {lr: ...}"; empty where there is no such key. Null: a section of
// other commands, whose keys nobody knows here.
std::string nested_form(const Section* section, const std::string& dotted) {
  const std::size_t dot = dotted.find('.');
  const std::string name = dotted.substr(0, dot);
  const Section::Entry* entry = section ? section->find(name) : nullptr;
  const bool is_last = dot == dotted.npos;
  if (section && !entry && (is_last || !section->ignores(name))) return "";
  if (is_last) return name + ": ...";
  const std::string rest = dotted.substr(dot + 1);
  const Key* key = entry ? entry->key.get() : nullptr;
  if (key && key->field().syntax() != Syntax::map) return "";
  const std::string below = key ? rest + ": ..." : nested_form(entry ? entry->section.get() : nullptr, rest);
  return below.empty() ? "" : fmt::format("{}: {{{}}}", name, below);
}

// Moves the values of the tree into the members behind the schema.
class Reader {
 public:
  Reader(const Section& schema, Report& report) : schema_(schema), report_(report) {}

  void read(Section& section, const Node& node, const std::string& path) {
    for (const Node& child : node.children) {
      const std::string key = join(path, child.name);
      const Section::Entry* entry = section.find(child.name);
      if (!entry && section.ignores(child.name)) {
        collect_overrides(child, key);
      } else if (!entry) {
        unknown(section, child, path);
      } else if (child.is_missing()) {
        if (!entry->key || !entry->key->skips_missing()) missing(*entry, child, key);
      } else if (entry->section) {
        read_section(*entry->section, child, key);
      } else if (child.origin != from_default) {
        read_key(*entry->key, child, key);
      }
    }
  }

 private:
  void read_key(Key& key, const Node& node, const std::string& path) {
    if (is_broken(node)) return report_.refuse(path);
    try {
      key.read(node);
    } catch (const BadValue& bad) {
      report_.refuse(path, node.origin, bad.message);
    }
  }

  // A file is for several commands; who types a key means this one.
  void collect_overrides(const Node& node, const std::string& path) {
    if (node.kind == Node::Kind::map) {
      for (const Node& child : node.children) collect_overrides(child, join(path, child.name));
    } else if (is_of_override(node.origin)) {
      report_.unread.push_back(path);
    }
  }

  void read_section(Section& section, const Node& node, const std::string& path) {
    if (node.broken) return report_.refuse(path);
    if (node.is_null()) {
      if (section.is_optional()) section.disengage();
    } else if (node.kind != Node::Kind::map) {
      report_.refuse(path, node.origin, fmt::format("expected a section with keys, got {}", node.show()));
    } else {
      if (!section.is_engaged()) section.engage();
      read(section, node, path);
    }
  }

  void missing(const Section::Entry& entry, const Node& node, const std::string& key) {
    const std::string& help = entry.key ? entry.key->help() : entry.section->help();
    report_.refuse(key, node.origin, fmt::format("must be set ({})", help));
  }

  void unknown(const Section& section, const Node& node, const std::string& path) {
    for (const auto& [before, now, meaning] : section.renamed()) {
      if (before != node.name) continue;
      return report_.problem_at(
          node.origin, fmt::format("{}: was replaced by {} ({})", join(path, before), join(path, now), meaning));
    }
    if (const std::string nested = nested_form(&section, node.name); !nested.empty())
      return report_.problem_at(node.origin, fmt::format("{}: unknown key: in YAML a dot is part of the name; write {}",
                                                         join(path, node.name), nested));
    const std::string meant = closest_key(schema_, section, path, node.name);
    report_.problem_at(node.origin, fmt::format("{}: unknown key{}", join(path, node.name),
                                                meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
  }

  const Section& schema_;
  Report& report_;
};

void add_file(Node& tree, const Section& schema, const std::string& text, const std::string& source,
              std::vector<Problem>& problems) {
  Node file = parse_yaml(text, source, true, problems);
  if (!file.is_null() && file.kind != Node::Kind::map) {
    problems.push_back({file.origin, "expected keys and values, got " + file.show()});
    return;
  }
  merge(tree, std::move(file), &schema, From::file);
}

Report finish(Section& schema, Node tree, std::vector<Problem> problems) {
  add_defaults(tree, schema);
  resolve_references(
      tree,
      [&](Node& node, const Path& path, std::vector<Node> maps) { merge_onto(schema, node, path, std::move(maps)); },
      problems);
  add_defaults(tree, schema);  // for sections that were references
  Report report;
  for (Problem& problem : problems) report.problem_at(problem.origin, problem.text);
  Reader(schema, report).read(schema, tree, "");
  report.tree = std::move(tree);
  return report;
}

}  // namespace

void Report::problem_at(std::string origin, std::string text) {
  const bool tells_nothing = origin.empty() || origin == from_default;
  problems_.push_back(tells_nothing ? std::move(text) : fmt::format("{}: {}", origin, text));
}

void Report::problem(std::string_view key, std::string_view text, std::initializer_list<std::string_view> rests_on) {
  const auto refused = [&](std::string_view other) { return is_refused(other); };
  if (refused(key) || std::any_of(rests_on.begin(), rests_on.end(), refused)) return;
  problem_at(origin(key), fmt::format("{}: {}", key, text));
}

void Report::refuse(const std::string& key, const std::string& origin, const std::string& text) {
  problem_at(origin, fmt::format("{}: {}", key, text));
  refuse(key);
}

// Also a key in a section that was refused as a whole.
bool Report::is_refused(std::string_view key) const {
  if (refused_.contains(key)) return true;
  const std::size_t dot = key.rfind('.');
  return dot != key.npos && is_refused(key.substr(0, dot));
}

std::string Report::origin(std::string_view key) const {
  const Node* node = &tree;
  const Path path = split(key);
  for (auto step = path.begin(); step != path.end(); ++step) {
    // The last name may hold dots itself: that of a field in a filter.
    if (const Node* last = node->find(fmt::format("{}", fmt::join(step, path.end(), ".")))) return last->origin;
    node = node->find(*step);
    if (!node) return {};
  }
  return node->origin;
}

bool Report::is_set(std::string_view key) const {
  const auto found = origin(key);
  return !found.empty() && found != from_default;
}

bool Report::is_typed(std::string_view key) const {
  return is_of_override(origin(key));
}

void Report::throw_if_problems() const {
  if (problems_.empty()) return;
  std::string text = problems_.size() == 1 ? "the configuration has a problem:"
                                           : fmt::format("the configuration has {} problems:", problems_.size());
  for (const std::string& problem : problems_) text += "\n  " + problem;
  throw Error(Exit::usage, text, "--help SECTION explains the keys");
}

Report load(Section& schema, const Inputs& inputs) {
  Node tree = Node::map();
  std::vector<Problem> problems;
  for (const auto& file : inputs.files) add_file(tree, schema, read_file(file), file.string(), problems);
  for (const auto& text : inputs.overrides)
    merge(tree, parse_override(schema, text, problems), &schema, From::argument);
  return finish(schema, std::move(tree), std::move(problems));
}

Report load_text(Section& schema, const std::string& yaml, const std::string& source) {
  Node tree = Node::map();
  std::vector<Problem> problems;
  add_file(tree, schema, yaml, source, problems);
  return finish(schema, std::move(tree), std::move(problems));
}

}  // namespace millrace::config
