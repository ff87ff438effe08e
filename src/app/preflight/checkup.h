#pragma once
#include <algorithm>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/core/stopwatch.h"
#include "preflight/deadline.h"
#include "preflight/ranks.h"

namespace millrace::preflight {

// What a rank found out, or why it could not.
struct Answer {
  nlohmann::json facts;  // null: this rank had no part in it
  std::optional<Error> error;
};
using Answers = std::vector<Answer>;  // of all ranks

// A line of the table, made by rank 0.
struct Row {
  std::string detail;
  std::vector<Suspicion> suspects = {};
  bool ends = false;  // what comes next cannot work with these suspects
};

// NOTE [Who is silent] A rank that hangs cannot say so, and those that wait for it cannot know for whom. So every check
// is a question that all ranks answer to rank 0, by a message of their own. Ranks that waited for others in vain answer
// just that when their time is over; who has not answered then is to blame, unless somebody has failed meanwhile. What
// a rank may fail at alone is asked before a question for which ranks talk to each other. Ranks that are stopped
// altogether are found earlier by the watchdog (comm/watchdog.h); calls that know no limit end with the Deadline.
class Checkup {
 public:
  using Work = std::function<nlohmann::json()>;
  using Judge = std::function<Row(const Answers&)>;

  // `hosts`: of every rank. Collective.
  Checkup(const World& world, std::vector<std::string> hosts, Deadline& deadline);

  int rank() const { return group_.rank(); }
  bool is_root() const { return rank() == 0; }
  const Group& group() const { return group_; }  // for messages of checks
  const std::vector<std::string>& hosts() const { return hosts_; }
  std::string name(int rank) const;  // "rank 2 on n1"
  double seconds() const { return watch_.seconds(); }

  // Those that follow are collective. `check` is a word that lives on.

  // Does `work` on every rank, and prints the line that `judge` makes of the answers on rank 0; ranks that failed alone
  // are suspect too.
  void check(const char* check, double seconds, const Work& work, const Judge& judge);

  // The parts of it, for checks of several steps. Every rank's answer, on rank 0; elsewhere as many empty ones. What
  // fails for all that had a part in it, or a signal to any rank, is thrown on all. Error(timeout) when a rank is
  // silent.
  Answers ask(const char* check, double seconds, const Work& work);
  // The same, where nothing can follow when a rank fails alone: that is told, and thrown on all ranks.
  Answers demand(const char* check, double seconds, const Work& work);
  // What `judge` throws, and suspects that end the checkup, are thrown on all ranks.
  void conclude(const std::string& check, const std::function<Row()>& judge);

  // Of the question that is being answered.
  double seconds_left() const { return std::max(0.0, limit_ - since_ask_.seconds()); }
  // What rank 0 knows, on all ranks.
  nlohmann::json broadcast(const nlohmann::json& facts) const;
  // A line for what this run has no use for.
  void skip(const std::string& check, const std::string& why);
  // Throws on all ranks if somebody is suspect.
  void finish() const;

  // The last words about a rank that is silent, with their line in the table; from any thread of one rank.
  Error hang(const std::string& what) const;

 private:
  void send_answer(const Answer& answer, double limit) const;
  Answers collect(Answer own, double limit) const;
  // Throws on all ranks what rank 0 brings.
  void agree_with_root(const std::optional<Error>& error) const;
  Error suspicion() const;

  Group group_, answers_;
  const std::vector<std::string> hosts_;
  Deadline& deadline_;
  Stopwatch watch_, since_ask_;
  double limit_ = 0;
  std::atomic<const char*> current_{"start"};
  std::vector<Suspicion> suspects_;
};

// Those who could not do what others could.
std::vector<Suspicion> failed_alone(const Answers& answers);

// `key` among the facts of the ranks that have it.
template <class T>
struct Facts {
  std::vector<int> ranks;
  std::vector<T> values;

  struct One {
    T value;
    int rank;
  };
  One least() const { return at(std::ranges::min_element(values)); }
  One most() const { return at(std::ranges::max_element(values)); }

 private:
  One at(typename std::vector<T>::const_iterator place) const { return {*place, ranks[place - values.begin()]}; }
};
template <class T>
Facts<T> facts_of(const Answers& answers, const char* key) {
  Facts<T> facts;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].facts.contains(key)) continue;
    facts.ranks.push_back(static_cast<int>(rank));
    facts.values.push_back(answers[rank].facts.at(key).template get<T>());
  }
  return facts;
}

// Errors in messages; null is none.
nlohmann::json to_json(const std::optional<Error>& error);
std::optional<Error> error_from(const nlohmann::json& json);

// Between two ranks, in `seconds` at most. Error(timeout).
void send(const Group& group, int to, std::span<const std::byte> bytes, double seconds);
void receive(const Group& group, int from, std::span<std::byte> bytes, double seconds);

}  // namespace millrace::preflight
