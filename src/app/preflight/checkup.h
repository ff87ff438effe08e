#pragma once
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/core/stopwatch.h"
#include "preflight/ranks.h"

namespace millrace::preflight {

// What a rank found out, or why it could not.
struct Answer {
  nlohmann::json facts;  // null: this rank had no part in it
  std::optional<Error> error;
};

// A line of the table, made by rank 0.
struct Row {
  std::string detail;
  std::vector<Suspicion> suspects;
  bool ends = false;  // what comes next cannot work with these suspects
  std::string result = "ok";
};

// NOTE [Who is silent] A rank that hangs cannot say so, and those that wait for it cannot know for whom. So every check
// is a question that all ranks answer to rank 0, by a message of their own. Ranks that waited for others in vain answer
// just that when their time is over; who has not answered then is to blame. Either a question is answered without the
// others, or all begin to talk at the same time. Ranks that are stopped altogether are found earlier by the watchdog
// (comm/watchdog.h); calls that know no limit end with TimeLimit.
class Checkup {
 public:
  using Work = std::function<nlohmann::json()>;

  // Collective, as everything here but `name`.
  explicit Checkup(const World& world);

  const World& world() const { return world_; }
  bool is_root() const { return world_.rank() == 0; }
  // For messages of checks.
  const Group& group() const { return group_; }
  std::string name(int rank) const;  // "rank 2 on n1"

  // Every rank's answer, on rank 0; elsewhere as many empty ones. What fails for all that had a part in it is thrown on
  // all ranks. Error(timeout) on rank 0 alone when a rank is silent.
  // `check`: a word that lives on.
  std::vector<Answer> ask(const char* check, double seconds, const Work& work);
  // Of the question that is being answered.
  double seconds_left() const;
  // What rank 0 knows, on all ranks.
  nlohmann::json tell(const nlohmann::json& facts);

  // Prints the line, on rank 0. Throws on all ranks if it `ends` the checkup.
  void conclude(const std::string& check, const Row& row);
  // A line for what this run has no use for.
  void skip(const std::string& check, const std::string& why);
  // Throws on all ranks if somebody is suspect.
  void finish();

  // The last words about a rank that is silent, with their line in the table; from any thread.
  Error hang(const std::string& what) const;

  double seconds() const { return watch_.seconds(); }

 private:
  void send_answer(const Answer& answer, double limit) const;
  std::vector<Answer> collect(Answer own, double limit) const;
  // Throws on all ranks what rank 0 brings.
  void agree_with_root(const std::optional<Error>& error) const;
  std::optional<Error> find_common_error(const std::vector<Answer>& answers) const;
  Error suspicion() const;
  void print(const std::string& check, const std::string& result, const std::string& detail) const;

  const World& world_;
  Group group_, answers_;
  Stopwatch watch_, since_ask_;
  double limit_ = 0;
  std::atomic<const char*> current_{"start"};
  std::vector<Suspicion> suspects_;
};

// Those who could not do what others could.
std::vector<Suspicion> failed_alone(const std::vector<Answer>& answers);
// Facts of the ranks that had a part: `key` of each, with their numbers in `ranks`.
template <class T>
std::vector<T> facts_of(const std::vector<Answer>& answers, const char* key, std::vector<int>& ranks) {
  std::vector<T> values;
  ranks.clear();
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    if (!answers[rank].facts.contains(key)) continue;
    ranks.push_back(static_cast<int>(rank));
    values.push_back(answers[rank].facts.at(key).template get<T>());
  }
  return values;
}

// Between two ranks, in `seconds` at most. Error(timeout).
void send(const Group& group, int to, std::span<const std::byte> bytes, double seconds);
void receive(const Group& group, int from, std::span<std::byte> bytes, double seconds);

}  // namespace millrace::preflight
