#include <fmt/format.h>

#include <algorithm>

#include "millrace/config/config.h"
#include "millrace/core/error.h"
#include "millrace/core/secrets.h"
#include "path.h"
#include "yaml.h"

namespace millrace::config {

namespace {

// Of a value, and of each entry of a free-form map.
void set_origins(Node& node, const std::string& key, const Report& report) {
  node.origin = report.origin(key);
  if (node.kind != Node::Kind::map) return;
  for (Node& child : node.children) {
    if (child.origin.empty()) set_origins(child, join(key, child.name), report);
  }
}

// The values behind the schema as a tree, sections that are null included; origins come from `report` when there is
// one.
Node values_of(const Section& section, const std::string& path, const Report* report) {
  Node map = Node::map();
  for (const Section::Entry& entry : section.entries()) {
    const std::string key = join(path, entry.name());
    Node node;
    if (entry.key) node = entry.key->write();
    if (entry.section && entry.section->is_engaged()) node = values_of(*entry.section, key, report);
    node.name = entry.name();
    if (report) set_origins(node, key, *report);
    map.children.push_back(std::move(node));
  }
  return map;
}

void hide_secrets(Node& node) {
  node.text = without_secrets(node.text);
  std::ranges::for_each(node.children, hide_secrets);
}

struct Row {
  std::string key, type, value, help;
};

void collect_rows(const Section& section, const std::string& path, std::vector<Row>& rows) {
  for (const Section::Entry& entry : section.entries()) {
    if (!entry.key) continue;
    const Key& key = *entry.key;
    rows.push_back({join(path, key.name()), key.type(), emit_flow(key.write()), key.help()});
  }
}

std::string purpose_of(const Section& section) {
  return section.help() + (section.is_optional() ? " (null or a section)" : "");
}

std::string help_of(const Section& section, const std::string& path) {
  std::vector<Row> rows;
  collect_rows(section, path, rows);
  std::size_t key_width = 0, type_width = 0, value_width = 0;
  for (const Row& row : rows) {
    key_width = std::max(key_width, row.key.size());
    type_width = std::max(type_width, row.type.size());
    value_width = std::max(value_width, row.value.size());
  }
  std::string text = path.empty() ? "" : fmt::format("{}: {}\n", path, purpose_of(section));
  for (const Row& row : rows) {
    text += fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}\n", row.key, key_width, row.value, value_width, row.type,
                        type_width, row.help);
  }
  for (const Section::Entry& entry : section.entries()) {
    if (entry.section) text += fmt::format("\n{}", help_of(*entry.section, join(path, entry.name())));
  }
  return text;
}

const Section& find_section(const Section& schema, std::string_view path) {
  const Section* section = &schema;
  if (path.empty()) return *section;
  for (const std::string& step : split(path)) {
    const Section::Entry* entry = section->find(step);
    if (!entry || !entry->section) {
      std::string known;
      for (const Section::Entry& other : section->entries()) {
        if (other.section) known += fmt::format("{}{}", known.empty() ? "" : ", ", other.name());
      }
      throw Error(Exit::usage, fmt::format("there is no section '{}'", path),
                  known.empty() ? "" : "sections: " + known);
    }
    section = entry->section.get();
  }
  return *section;
}

// A bar would end the cell.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string markdown_of(const Section& section, const std::string& path) {
  std::vector<Row> rows;
  collect_rows(section, path, rows);
  std::string text;
  if (!path.empty()) text += fmt::format("## {}\n\n{}\n\n", path, purpose_of(section));
  if (!rows.empty()) text += "| key | default | type | meaning |\n|---|---|---|---|\n";
  for (const Row& row : rows) {
    text += fmt::format("| `{}` | `{}` | {} | {} |\n", row.key, row.value, cell(row.type), cell(row.help));
  }
  if (!rows.empty()) text += "\n";
  for (const Section::Entry& entry : section.entries()) {
    if (entry.section) text += markdown_of(*entry.section, join(path, entry.name()));
  }
  return text;
}

void collect_values(const Section& section, const std::string& path,
                    std::vector<std::pair<std::string, std::string>>& values) {
  for (const Section::Entry& entry : section.entries()) {
    const std::string key = join(path, entry.name());
    if (entry.key) {
      values.emplace_back(key, emit_flow(entry.key->write()));
    } else if (entry.section->is_engaged()) {
      collect_values(*entry.section, key, values);
    } else {
      values.emplace_back(key, "null");
    }
  }
}

// Keys that `earlier` names by what they were called.
void collect_renamed(const Section& section, const Node& earlier, const std::string& path,
                     std::vector<Change>& changes) {
  for (const auto& [before, now, meaning] : section.renamed()) {
    const Node* old = earlier.find(before);
    if (!old) continue;
    const std::string key = join(path, now);
    std::erase_if(changes, [&](const Change& change) { return change.key == key; });
    changes.push_back(
        {key, fmt::format("{}: {}", join(path, before), emit_flow(*old)), emit_flow(section.find(now)->key->write())});
  }
  for (const Section::Entry& entry : section.entries()) {
    const Node* child = entry.section ? earlier.find(entry.name()) : nullptr;
    if (child) collect_renamed(*entry.section, *child, join(path, entry.name()), changes);
  }
}

}  // namespace

std::string dump_yaml(const Section& schema) {
  return emit_yaml(values_of(schema, "", nullptr), false);
}

std::string dump_yaml_for_others(const Section& schema) {
  Node values = values_of(schema, "", nullptr);
  hide_secrets(values);
  return emit_yaml(values, false);
}

std::string print_yaml(const Section& schema, const Report& report) {
  return emit_yaml(values_of(schema, "", &report), true);
}

std::string print_json(const Section& schema) {
  return emit_json(values_of(schema, "", nullptr));
}

std::string help(const Section& schema, std::string_view section) {
  // Of a key: what explains it, its section.
  const auto dot = section.rfind('.');
  const auto above = section.substr(0, dot == section.npos ? 0 : dot);
  const Section& parent = find_section(schema, above);
  const auto* const entry = parent.find(section.substr(dot == section.npos ? 0 : dot + 1));
  if (entry && !entry->section) return help_of(parent, std::string(above));
  return help_of(find_section(schema, section), std::string(section));
}

std::string markdown(const Section& schema) {
  return markdown_of(schema, "");
}

bool is_in(std::string_view key, std::string_view section) {
  return key.starts_with(section) && (key.size() == section.size() || key[section.size()] == '.');
}

std::vector<Change> changes(const Section& before, const Node& earlier, const Section& after) {
  std::vector<std::pair<std::string, std::string>> old_values, new_values;
  collect_values(before, "", old_values);
  collect_values(after, "", new_values);
  const auto value_in = [](const auto& values, const std::string& key) -> std::string {
    for (const auto& [name, value] : values) {
      if (name == key) return value;
    }
    return "(none)";
  };
  std::vector<Change> found;
  for (const auto& [key, value] : new_values) {
    const std::string old_value = value_in(old_values, key);
    // A presigned address has another signature every day.
    if (without_secrets(old_value) != without_secrets(value)) found.push_back({key, old_value, value});
  }
  for (const auto& [key, value] : old_values) {
    if (value_in(new_values, key) == "(none)") found.push_back({key, value, "(none)"});
  }
  collect_renamed(after, earlier, "", found);
  return found;
}

}  // namespace millrace::config
