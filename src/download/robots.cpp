#include "robots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "millrace/core/text.h"

namespace millrace {

namespace {

constexpr std::size_t max_origins = 50'000;
constexpr std::size_t max_bytes = 64 << 20;
// Rules x bytes of the path: the thread that looks at them also serves all transfers, and stars make it look far.
constexpr std::size_t most_comparisons = 20'000'000;
constexpr auto lifetime = std::chrono::hours(24);  // RFC 9309, 2.4

bool is_hex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

int hex_value(char c) {
  return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

bool is_unreserved(unsigned char c) {
  return c < 0x80 && (std::isalnum(c) || c == '-' || c == '.' || c == '_' || c == '~');
}

// Encoded and plain forms of one path become equal: unreserved characters (RFC 3986) plain, all other escapes, what is
// no ASCII, and `marks` as %XX.
std::string normalize(std::string_view path, std::string_view marks) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    auto c = static_cast<unsigned char>(path[i]);
    bool escaped = c >= 0x80 || marks.find(path[i]) != marks.npos;
    if (c == '%' && i + 2 < path.size() && is_hex(path[i + 1]) && is_hex(path[i + 2])) {
      c = static_cast<unsigned char>(hex_value(path[i + 1]) * 16 + hex_value(path[i + 2]));
      i += 2;
      escaped = !is_unreserved(c);
    }
    if (escaped) {
      out += fmt::format("%{:02X}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

// In a pattern `*` and `$` have a meaning; in a path they are characters like others.
std::string normalize_pattern(std::string_view pattern) {
  return normalize(pattern, "");
}
std::string normalize_path(std::string_view path) {
  return normalize(path, "*$");
}

// The parts between stars, each at its first place behind the one before; the last one of a pattern that ends with `$`
// at the path's end.
bool matches(std::string_view pattern, std::string_view path) {
  const bool anchored = pattern.ends_with('$');
  if (anchored) pattern.remove_suffix(1);
  const bool last_is_free = !anchored || pattern.ends_with('*');
  const std::string_view first = pattern.substr(0, pattern.find('*'));
  if (!path.starts_with(first)) return false;
  if (first.size() == pattern.size()) return last_is_free || path.size() == pattern.size();
  std::size_t place = first.size();
  pattern.remove_prefix(first.size() + 1);
  while (true) {
    const auto star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    if (star == pattern.npos && !last_is_free) return path.size() >= place + part.size() && path.ends_with(part);
    const auto found = path.find(part, place);
    if (found == path.npos) return false;
    if (star == pattern.npos) return true;
    place = found + part.size();
    pattern.remove_prefix(star + 1);
  }
}

// "millrace/1.0" names millrace.
std::string product_of(std::string_view value) {
  const auto end = std::find_if_not(value.begin(), value.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalpha(c)) || c == '_' || c == '-' || c == '*';
  });
  return lower(value.substr(0, static_cast<std::size_t>(end - value.begin())));
}

}  // namespace

Robots::Robots(std::string_view text, std::string_view name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::vector<Rule> for_all;
  bool named = false, is_ours = false, is_for_all = false, in_rules = true;
  while (!text.empty()) {
    std::string_view line = take_until(text, '\n');
    for (std::string_view rest = line; !rest.empty();) {  // lines may also end with CR alone
      std::string_view content = take_until(rest, '\r');
      content = take_until(content, '#');
      if (content.find(':') == content.npos) continue;
      const std::string key = lower(trim(take_until(content, ':')));
      const std::string_view value = trim(content);
      if (key == "user-agent") {
        if (std::exchange(in_rules, false)) is_ours = is_for_all = false;  // a new group
        const std::string product = product_of(value);
        is_ours |= product == name;
        is_for_all |= product == "*";
        named |= product == name;
      } else if (key == "allow" || key == "disallow") {
        in_rules = true;
        if (value.empty()) continue;
        if (is_ours) rules_.push_back({key == "allow", normalize_pattern(value)});
        if (is_for_all) for_all.push_back({key == "allow", normalize_pattern(value)});
      }
    }
  }
  if (!named) rules_ = std::move(for_all);
}

bool Robots::allows(std::string_view raw_path) const {
  const std::string path = normalize_path(raw_path);
  if (path == "/robots.txt") return true;
  if (rules_.size() * path.size() > most_comparisons) return false;
  const Rule* best = nullptr;
  for (const Rule& rule : rules_) {
    const auto length = [](const Rule& r) { return 2 * r.pattern.size() + r.allow; };
    if (best && length(*best) >= length(rule)) continue;
    if (matches(rule.pattern, path)) best = &rule;
  }
  return !best || best->allow;
}

std::size_t Robots::bytes() const {
  std::size_t bytes = 0;
  for (const Rule& rule : rules_) bytes += sizeof rule + rule.pattern.size();
  return bytes;
}

const RobotsCache::Verdict* RobotsCache::find(const std::string& origin, Clock::time_point now) const {
  const auto found = entries_.find(origin);
  return found == entries_.end() || found->second.expires <= now ? nullptr : &found->second.verdict;
}

const RobotsCache::Verdict& RobotsCache::store(const std::string& origin, Verdict verdict, Clock::time_point now) {
  const bool has_rules = std::holds_alternative<Robots>(verdict);
  const auto expires = now + (has_rules ? Clock::duration(lifetime) : failures_last_);
  const auto [place, is_new] = entries_.try_emplace(origin);
  if (is_new) order_.push_back(origin);
  bytes_ -= bytes_of(place->second);
  place->second = {std::move(verdict), expires};
  bytes_ += bytes_of(place->second);
  while ((entries_.size() > max_origins || bytes_ > max_bytes) && order_.front() != origin) {
    bytes_ -= bytes_of(entries_[order_.front()]);
    entries_.erase(order_.front());
    order_.pop_front();
  }
  return place->second.verdict;
}

void RobotsCache::forget_failures() {
  for (auto& [origin, entry] : entries_)
    if (std::holds_alternative<Failure>(entry.verdict)) entry.expires = {};
}

std::size_t RobotsCache::bytes_of(const Entry& entry) {
  const auto* const robots = std::get_if<Robots>(&entry.verdict);
  return robots ? robots->bytes() : 0;
}

}  // namespace millrace
