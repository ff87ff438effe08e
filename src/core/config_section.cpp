#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/core/config.h"
#include "millrace/core/error.h"

namespace millrace::config {

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

std::string Key::type() const {
  if (!words_.empty()) return fmt::format("{}", fmt::join(words_, " | "));
  std::string type = field_->type();
  for (const Bound& bound : bounds_) type += (&bound == &bounds_.front() ? " " : ", ") + bound.text;
  return type;
}

void Key::check_bounds(const Node& node) const {
  for (const double number : field_->numbers()) {
    for (const Bound& bound : bounds_) {
      if (!bound.holds(number, bound.bound)) expected(type(), node);
    }
  }
  const Node value = field_->write();
  const bool is_word = value.kind == Node::Kind::scalar && value.text != "auto";
  if (is_word && !words_.empty() && std::find(words_.begin(), words_.end(), value.text) == words_.end()) {
    expected(type(), node);
  }
}

void Key::read(const Node& node) {
  field_->read(node);
  check_bounds(node);
}

Node Key::write() const {
  Node node = field_->write();
  const bool is_empty = node.kind == Node::Kind::scalar ? node.text.empty() : node.children.empty();
  return required_ && is_empty ? Node::scalar("???") : node;
}

void Section::ignore(const std::vector<std::string>& names) {
  ignored_.insert(ignored_.end(), names.begin(), names.end());
}

const Section::Entry* Section::find(std::string_view name) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name() == name; });
  return found == entries_.end() ? nullptr : &*found;
}

bool Section::ignores(std::string_view name) const {
  return std::find(ignored_.begin(), ignored_.end(), name) != ignored_.end();
}

void Section::engage() {
  entries_.clear();
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
