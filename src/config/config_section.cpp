#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/config/config.h"
#include "millrace/core/error.h"

namespace millrace::config {

namespace {

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// A text without letters, or a list of nothing but those.
bool is_empty(const Node& node) {
  if (node.kind == Node::Kind::scalar) return node.text.empty();
  return std::all_of(node.children.begin(), node.children.end(), is_empty);
}

}  // namespace

Key& Key::add(std::string sign, double bound, bool (*holds)(double, double)) {
  bounds_.push_back({fmt::format("{} {}", sign, bound), holds, bound});
  return *this;
}

Key& Key::at_least(double bound) {
  return add(">=", bound, [](double value, double limit) { return value >= limit; });
}
Key& Key::above(double bound) {
  return add(">", bound, [](double value, double limit) { return value > limit; });
}
Key& Key::at_most(double bound) {
  return add("<=", bound, [](double value, double limit) { return value <= limit; });
}
Key& Key::below(double bound) {
  return add("<", bound, [](double value, double limit) { return value < limit; });
}

Key& Key::one_of(std::vector<std::string> words) {
  words_ = std::move(words);
  return *this;
}

Key& Key::required() {
  required_ = true;
  return *this;
}

Key& Key::skip_missing() {
  skips_missing_ = true;
  return *this;
}

std::string Key::type() const {
  std::string type = words_.empty() ? field_->type() : fmt::format("{}", fmt::join(words_, " | "));
  for (const Bound& bound : bounds_) type += (&bound == &bounds_.front() ? " " : ", ") + bound.text;
  return type;
}

void Key::check(const Node& node) const {
  for (const double number : field_->numbers()) {
    for (const Bound& bound : bounds_) {
      if (!bound.holds(number, bound.bound)) expected(type(), node);
    }
  }
  const Node value = field_->write();
  if (required_ && is_empty(value)) throw BadValue{fmt::format("must be set ({})", help_)};
  const bool is_word = value.kind == Node::Kind::scalar;
  if (is_word && !words_.empty() && !contains(words_, value.text)) expected(type(), node);
}

void Key::read(const Node& node) {
  field_->read(node, [&] { check(node); });
}

Node Key::write() const {
  Node node = field_->write();
  return required_ && is_empty(node) ? Node::scalar("???") : node;
}

void Section::ignore(const std::vector<std::string>& names) {
  std::erase_if(entries_, [&](const Entry& entry) { return contains(names, entry.name()); });
  ignored_.insert(ignored_.end(), names.begin(), names.end());
}

void Section::keep(const std::vector<std::string>& names) {
  for (const std::string& name : names) ensure(find(name), fmt::format("there is no key '{}'", name));
  std::vector<std::string> others;
  for (const Entry& entry : entries_) {
    if (!contains(names, entry.name())) others.push_back(entry.name());
  }
  ignore(others);
}

void Section::ignore_rest_of(const Section& other) {
  for (const Entry& entry : other.entries_) {
    if (!find(entry.name())) ignored_.push_back(entry.name());
  }
  for (const Renamed& renamed : other.renamed_) ignored_.push_back(renamed.before);
}

Section& Section::at(std::string_view name) {
  const Entry* entry = find(name);
  ensure(entry && entry->section, fmt::format("there is no section '{}'", name));
  return *entry->section;
}

void Section::renamed(std::string before, std::string now, std::string meaning) {
  ensure(find(now), fmt::format("there is no key '{}'", now));
  renamed_.push_back({std::move(before), std::move(now), std::move(meaning)});
}

const Section::Entry* Section::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name() == name; });
  return found == entries_.end() ? nullptr : &*found;
}

bool Section::ignores(std::string_view name) const {
  return contains(ignored_, name);
}

void Section::engage() {
  entries_.clear();
  renamed_.clear();
  engage_(*this);
  defaults_.reset();
}

void Section::disengage() {
  disengage_();
}

Key& Section::add(std::string name, std::string help, std::unique_ptr<Field> field) {
  ensure(!find(name), fmt::format("key '{}' is described twice", name));
  entries_.push_back({std::make_unique<Key>(std::move(name), std::move(help), std::move(field)), nullptr});
  return *entries_.back().key;
}

Section& Section::add_section(std::string name, std::string help) {
  ensure(!find(name), fmt::format("section '{}' is described twice", name));
  entries_.push_back({nullptr, std::make_unique<Section>(std::move(name), std::move(help))});
  return *entries_.back().section;
}

}  // namespace millrace::config
