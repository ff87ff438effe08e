#pragma once
#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "millrace/download/failure.h"

// robots.txt as RFC 9309 has it.
namespace millrace {

// The rules of one robots.txt for this program: those of every group that names it, else those for everybody.
class Robots {
 public:
  Robots() = default;  // allows everything
  Robots(std::string_view text, std::string_view name);

  // `path` = path and query of a URL. The rule with the longest pattern decides, `allow` when two are as long. A path
  // of kilobytes that thousands of rules are to be held against is not allowed: that would take seconds.
  bool allows(std::string_view path) const;
  std::size_t bytes() const;

 private:
  struct Rule {
    bool allow;
    std::string pattern;  // `*` = any characters, `$` at its end = the end of the path
  };
  std::vector<Rule> rules_;
};

// The answers of the last origins asked, bounded in number, memory and age.
class RobotsCache {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RobotsCache(Clock::duration failures_last) : failures_last_(failures_last) {}

  // Its rules, or why its robots.txt could not be had, which forbids everything while such failures last.
  using Verdict = std::variant<Robots, Failure>;
  // What is known of `origin`; null = ask.
  const Verdict* find(const std::string& origin, Clock::time_point now) const;
  // Returns it as it is kept, until the next one.
  const Verdict& store(const std::string& origin, Verdict verdict, Clock::time_point now);
  // What could not be had is asked for again.
  void forget_failures();

 private:
  struct Entry {
    Verdict verdict;
    Clock::time_point expires;
  };
  static std::size_t bytes_of(const Entry& entry);

  const Clock::duration failures_last_;
  std::unordered_map<std::string, Entry> entries_;
  std::deque<std::string> order_;  // oldest first
  std::size_t bytes_ = 0;
};

}  // namespace millrace
