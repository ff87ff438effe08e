#include <algorithm>
#include <cstdint>
#include <optional>

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

using Strings = std::vector<std::string>;

// More names than any data set has archives: a typing error in a range must not eat the memory.
constexpr std::size_t max_names = 10'000'000;
constexpr std::int64_t max_bound = std::int64_t{1} << 62;

[[noreturn]] void refuse(std::string_view pattern, std::string_view why) {
  throw Error(Exit::usage, fmt::format("'{}': {}", pattern, why),
              "write \\{ and \\} for braces that are part of a name");
}

// Calls visit(position, character, depth before it) for the characters that no backslash protects; returns the last
// depth.
template <class Visit>
int scan(std::string_view text, Visit visit) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
      continue;
    }
    visit(i, text[i], depth);
    if (text[i] == '{') ++depth;
    if (text[i] == '}') --depth;
  }
  return depth;
}

std::string without_escapes(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    plain += text[i];
  }
  return plain;
}

void append(Strings& to, const Strings& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Every name of `heads` followed by every one of `tails`.
Strings product(const Strings& heads, const Strings& tails, std::string_view pattern) {
  if (!tails.empty() && heads.size() > max_names / tails.size())
    refuse(pattern, "expands to more than 10 million names");
  Strings names;
  names.reserve(heads.size() * tails.size());
  for (const std::string& head : heads) {
    for (const std::string& tail : tails) names.push_back(head + tail);
  }
  return names;
}

struct Range {
  std::string_view first, last;
  std::uint64_t step = 1;
};

bool is_integer(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "A..B" or "A..B..STEP"; a step has a sign that says nothing, and 0 means 1.
std::optional<Range> try_range(std::string_view inside) {
  const auto dots = inside.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  Range range{.first = inside.substr(0, dots), .last = inside.substr(dots + 2)};
  const auto more = range.last.find("..");
  if (more == std::string_view::npos) return range;
  std::string_view step = range.last.substr(more + 2);
  range.last = range.last.substr(0, more);
  if (step.starts_with('-')) step.remove_prefix(1);
  const auto value = parse_number<std::uint64_t>(step);
  if (!value) return std::nullopt;
  range.step = std::max<std::uint64_t>(*value, 1);
  return range;
}

// Values first, first +- step, ... up to and including `last`, each through `name`.
template <class Name>
Strings count(std::int64_t first, std::int64_t last, std::uint64_t step, std::string_view pattern, Name name) {
  const std::uint64_t distance = first < last ? static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first)
                                              : static_cast<std::uint64_t>(first) - static_cast<std::uint64_t>(last);
  if (distance / step >= max_names) refuse(pattern, "expands to more than 10 million names");
  Strings names;
  for (std::uint64_t done = 0; done <= distance / step; ++done) {
    const auto offset = static_cast<std::int64_t>(done * step);
    names.push_back(name(first < last ? first + offset : first - offset));
  }
  return names;
}

bool asks_for_padding(std::string_view bound) {
  if (bound.starts_with('-')) bound.remove_prefix(1);
  return bound.size() > 1 && bound.starts_with('0');
}

std::optional<Strings> try_integers(const Range& range, std::string_view pattern) {
  if (!is_integer(range.first) || !is_integer(range.last)) return std::nullopt;
  const auto read = [&](std::string_view text) {
    const auto value = parse_number<std::int64_t>(text);
    if (!value || *value > max_bound || *value < -max_bound) refuse(pattern, "a bound of the range is too large");
    return *value;
  };
  const std::int64_t first = read(range.first), last = read(range.last);
  const bool padded = asks_for_padding(range.first) || asks_for_padding(range.last);
  const std::size_t width = padded ? std::max(range.first.size(), range.last.size()) : 0;
  return count(first, last, range.step, pattern, [&](std::int64_t n) { return fmt::format("{:0{}}", n, width); });
}

// Letters count A..Z, then a..z.
std::optional<Strings> try_letters(const Range& range, std::string_view pattern) {
  static constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  if (range.first.size() != 1 || range.last.size() != 1) return std::nullopt;
  const auto first = letters.find(range.first[0]), last = letters.find(range.last[0]);
  if (first == std::string_view::npos || last == std::string_view::npos) return std::nullopt;
  return count(static_cast<std::int64_t>(first), static_cast<std::int64_t>(last), range.step, pattern,
               [&](std::int64_t n) { return std::string(1, letters[static_cast<std::size_t>(n)]); });
}

Strings expand(std::string_view pattern);

// The alternatives of "a,b,c"; nothing when there is no comma outside inner braces.
std::optional<Strings> try_alternatives(std::string_view inside) {
  std::size_t start = 0;
  Strings names;
  bool any = false;
  const int depth = scan(inside, [&](std::size_t i, char c, int at_depth) {
    if (c != ',' || at_depth != 0) return;
    append(names, expand(inside.substr(start, i - start)));
    start = i + 1;
    any = true;
  });
  if (depth != 0 || !any) return std::nullopt;
  append(names, expand(inside.substr(start)));
  return names;
}

// What "{inside}" stands for; braces that hold neither a range nor alternatives are ordinary characters.
Strings expand_group(std::string_view inside) {
  if (const auto range = try_range(inside)) {
    if (auto names = try_integers(*range, inside)) return *names;
    if (auto names = try_letters(*range, inside)) return *names;
  }
  if (auto names = try_alternatives(inside)) return *names;
  Strings names = expand(inside);
  for (std::string& name : names) name = "{" + name + "}";
  return names;
}

Strings expand(std::string_view pattern) {
  Strings names = {""};
  std::size_t start = 0;
  const int depth = scan(pattern, [&](std::size_t i, char c, int at_depth) {
    if (c == '{' && at_depth == 0) {
      for (std::string& name : names) name += without_escapes(pattern.substr(start, i - start));
      start = i + 1;
    } else if (c == '}' && at_depth == 1) {
      names = product(names, expand_group(pattern.substr(start, i - start)), pattern);
      start = i + 1;
    }
  });
  if (depth != 0) refuse(pattern, "unbalanced braces");
  for (std::string& name : names) name += without_escapes(pattern.substr(start));
  return names;
}

}  // namespace

std::vector<std::string> expand_braces(std::string_view pattern) {
  return expand(pattern);
}

}  // namespace millrace
