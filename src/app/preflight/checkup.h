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
  bool is_to_blame = false;  // its own node broke (comm/fault.h): it has not only waited for others
};
using Answers = std::vector<Answer>;  // of all ranks
void to_json(nlohmann::json& json, const Answer& answer);
void from_json(const nlohmann::json& json, Answer& answer);

// `key` among the facts of the ranks that have it.
template <class T>
Facts<T> facts_of(const Answers& answers, const std::string& key) {
  Facts<T> facts;
  for (int rank = 0; const auto& answer : answers) {
    if (answer.facts.contains(key)) facts.push_back({rank, answer.facts.at(key).template get<T>()});
    ++rank;
  }
  return facts;
}

// The same of numbers that may not be finite, which JSON does not know: they travel as text.
std::string number_text(double number);
Facts<double> numbers_of(const Answers& answers, const std::string& key);

// Those who could not do what others could.
std::vector<Suspicion> failed_alone(const Answers& answers);

// A line of the table.
struct Row {
  std::string detail;
  std::vector<Suspicion> suspects = {};
  bool ends = false;  // what comes next cannot work with suspects

  template <class... Args>
  void suspect(int rank, fmt::format_string<Args...> what, Args&&... args) {
    suspects.push_back({rank, fmt::format(what, std::forward<Args>(args)...)});
  }
};

// NOTE [Who is silent] A rank that hangs cannot say so, and those that wait for it cannot know for whom. So every check
// is a question that all ranks answer to rank 0, by a message of their own; rank 0 then tells all of them all answers,
// from which each draws the same conclusions. Ranks that waited for others in vain answer just that when their time is
// over; who has not answered then is to blame, unless somebody has failed meanwhile, and nobody where all have waited.
// What a rank may fail at alone is asked before a question for which ranks talk to each other. Ranks that are stopped
// altogether are found earlier by the watchdog (comm/watchdog.h); calls that know no limit end with the Deadline.
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

  // Those that follow are collective. `check` is a word that lives on.

  // Does `work` on every rank and returns the answers of all on all ranks; facts that are an object also get "seconds".
  // What fails for all that had a part in it, or a signal to any rank, is thrown on all. Error(suspect_node) when a
  // rank is silent.
  Answers ask(const char* check, double seconds, const Work& work);
  // The same, where nothing can follow when a rank fails alone: that is told, and thrown on all ranks.
  Answers demand(const char* check, double seconds, const Work& work);
  // Prints the line that `judge` makes of the answers; who failed alone at the last question is suspect, too. What
  // `judge` throws, and suspects that end the checkup, are thrown on all ranks.
  void conclude(const std::function<Row()>& judge);

  // A line for what this run has no use for.
  void skip(const char* check, const std::string& why) const;
  // Throws if somebody is suspect.
  void finish() const;

  // Messages between two ranks, inside of `work`, until its time is over. Error(suspect_node).
  void send(int to, std::span<const std::byte> bytes) const;
  void receive(int from, std::span<std::byte> bytes) const;

  // The last words about a rank that is silent, with their line in the table; from any thread of one rank.
  Error hang(const std::string& what) const;

 private:
  Answers collect(Answer own, double limit) const;
  // What no rank could do, in the words of the lowest; nothing when one could.
  std::optional<Error> find_common_error(const Answers& answers) const;
  // Of ranks that have all waited for others.
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
