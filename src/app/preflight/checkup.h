#pragma once
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/deadline.h"
#include "millrace/comm/world.h"
#include "millrace/core/stopwatch.h"
#include "preflight/ranks.h"

namespace millrace::preflight {

// What a rank found out, or why it could not.
struct Answer {
  nlohmann::json facts = {};  // null: this rank had no part in it
  std::optional<Error> error = {};
  bool is_to_blame = false;  // its own node failed (comm/fault.h); it did not merely wait for others
};
using Answers = std::vector<Answer>;  // of all ranks
void to_json(nlohmann::json& json, const Answer& answer);
void from_json(const nlohmann::json& json, Answer& answer);

// The facts called `key`, of the ranks that have them.
template <class T>
Facts<T> facts_of(const Answers& answers, const std::string& key) {
  Facts<T> facts;
  for (int rank = 0; const auto& answer : answers) {
    if (answer.facts.contains(key)) facts.push_back({rank, answer.facts.at(key).template get<T>()});
    ++rank;
  }
  return facts;
}

// The same for numbers that may not be finite: JSON has none, so they travel as text.
std::string number_text(double number);
Facts<double> numbers_of(const Answers& answers, const std::string& key);

// The ranks that could not do what others could.
std::vector<Suspicion> failed_alone(const Answers& answers);

// A line of the table.
struct Row {
  std::string detail;
  std::vector<Suspicion> suspects = {};
  bool ends = false;  // the checkup ends here if there are suspects

  template <class... Args>
  void suspect(int rank, fmt::format_string<Args...> what, Args&&... args) {
    suspects.push_back({rank, fmt::format(what, std::forward<Args>(args)...)});
  }
};

// NOTE [Who is silent] A rank that hangs cannot say so, and those that wait for it cannot know for whom. So every check
// is a question that each rank answers to rank 0, by a message of its own; rank 0 then sends all answers to all ranks,
// from which each draws the same conclusions. Ranks that waited for others in vain answer just that when their time is
// over. A rank that has not answered by then is to blame, unless another one has failed meanwhile; if all have waited,
// none is. Anything a rank may fail at alone is asked before a question for which ranks talk to each other. Ranks that
// are stopped altogether are found earlier by the watchdog (comm/watchdog.h); calls without a limit end with the
// Deadline.
class Checkup {
 public:
  using Work = std::function<nlohmann::json()>;

  // `hosts`: of every rank. Collective.
  Checkup(const World& world, std::vector<std::string> hosts, Deadline& deadline);

  int rank() const { return group_.rank(); }
  bool is_root() const { return group_.is_root(); }
  const std::vector<std::string>& hosts() const { return hosts_; }
  std::string name(int rank) const;  // "rank 2 on n1"
  double seconds() const { return watch_.seconds(); }

  // The following are collective. `check` must be a string literal.

  // Does `work` on every rank and returns the answers of all ranks on all; facts that are a JSON object also get
  // "seconds". Throws on all ranks what failed on every rank that took part, or a signal to any rank.
  // Error(suspect_node) when a rank is silent.
  Answers ask(const char* check, double seconds, const Work& work);
  // The same, but if a rank fails alone that is printed, and thrown on all ranks, since nothing can follow.
  Answers demand(const char* check, double seconds, const Work& work);
  // Prints the line that `judge` makes of the answers; ranks that failed alone at the last question are suspects, too.
  // What `judge` throws, and suspects that end the checkup, are thrown on all ranks.
  void conclude(const std::function<Row()>& judge);

  // Prints a line for a check that this run has no use for.
  void skip(const char* check, const std::string& why) const;
  // Throws if there are suspects.
  void finish() const;

  // Messages between two ranks, inside of `work`, until its time is over; Error(suspect_node) then.
  void send(int to, std::span<const std::byte> bytes) const;
  void receive(int from, std::span<std::byte> bytes) const;

  // Prints the line of a check in which a rank is silent, and returns the error about it. Any thread of one rank may
  // call it.
  Error hang(const std::string& what) const;

 private:
  Answers collect(Answer own, double limit) const;
  // The error if no rank could do it, in the words of the lowest; nothing if one could.
  std::optional<Error> find_common_error(const Answers& answers) const;
  // The error if all ranks have waited for others.
  Error nobody_came_through(const std::vector<Suspicion>& all, const std::string& hint_of_lowest) const;
  double seconds_left() const;

  Group group_;
  const std::vector<std::string> hosts_;
  Deadline& deadline_;
  Stopwatch watch_, since_ask_;
  double limit_ = 0;
  std::vector<Suspicion> failed_alone_;  // at the last question
  std::atomic<const char*> current_{"start"};
  std::vector<std::string> suspicions_;
};

}  // namespace millrace::preflight
