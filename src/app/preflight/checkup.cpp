#include "preflight/checkup.h"

#include <cstdio>

#include "millrace/comm/agree.h"
#include "millrace/comm/backoff.h"
#include "millrace/core/deadline.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/core/visible.h"
#include "preflight/time_limit.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr std::size_t answer_bytes = 256 << 10;
constexpr double grace_seconds = 5;  // for an answer to arrive, once its rank's time is over
constexpr const char* hint = "leave that node out (srun --exclude, another list of hosts), or repair it";

enum Tag { tag_answer = 1, tag_message };

json to_json(const Answer& answer) {
  json text = {{"facts", answer.facts}, {"stop", stop::requested()}};
  if (answer.error)
    text["error"] = {static_cast<int>(answer.error->exit()), answer.error->what(), answer.error->hint()};
  return text;
}

// File names may be any bytes.
std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

struct Told {
  Answer answer;
  bool stop = false;
};

Told from_text(std::string_view text) {
  const auto parsed = json::parse(text);
  Told told{{parsed.at("facts"), {}}, parsed.at("stop")};
  if (parsed.contains("error")) {
    const auto& error = parsed.at("error");
    told.answer.error.emplace(static_cast<Exit>(error[0].get<int>()), error[1].get<std::string>(),
                              error[2].get<std::string>());
  }
  return told;
}

Answer answer_of(const Checkup::Work& work) {
  try {
    return {work(), {}};
  } catch (...) {
    return {nullptr, present_error()};
  }
}

// Ranks that have only waited for others say so with Exit::timeout.
bool waited(const Answer& answer) {
  return answer.error && answer.error->exit() == Exit::timeout;
}

std::string list_of(const std::vector<int>& ranks, const Checkup& checkup) {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) text += (i ? ", " : "") + checkup.name(ranks[i]);
  return ranks.size() > most ? fmt::format("{} and {} more", text, ranks.size() - most) : text;
}

// Waits until the transfer is done; false when that takes longer.
bool finished_within(Transfer& transfer, double seconds) {
  Backoff backoff;
  while (!transfer.done()) {
    if (backoff.seconds() > seconds) return false;
    backoff.pause();
  }
  return true;
}

}  // namespace

Checkup::Checkup(const World& world)
    : world_(world), group_(world.group().duplicate()), answers_(world.group().duplicate()) {
  phase::current = "in preflight";
}

std::string Checkup::name(int rank) const {
  return fmt::format("rank {} on {}", rank, world_.hosts()[static_cast<std::size_t>(rank)]);
}

void Checkup::send_answer(const Answer& answer, double limit) const {
  const auto text = to_text(to_json(answer));
  ensure(text.size() <= answer_bytes, "an answer fits into a message");
  auto sender = answers_.sender(0, tag_answer, std::as_bytes(std::span(text)));
  sender.start(text.size());
  if (!finished_within(sender, limit)) fail(Exit::timeout, "{} takes no answers", name(0));
}

std::vector<Answer> Checkup::collect(Answer own, double limit) const {
  struct Awaited {
    std::string text = std::string(answer_bytes, '\0');
    Transfer transfer;
    bool done = false;
  };
  std::vector<Awaited> awaited(static_cast<std::size_t>(world_.size()));
  for (int rank = 1; rank < world_.size(); ++rank) {
    auto& from = awaited[rank];
    from.transfer = answers_.receiver(rank, tag_answer, std::as_writable_bytes(std::span(from.text)));
    from.transfer.start();
  }
  std::vector<Answer> answers(awaited.size());
  answers[0] = std::move(own);
  bool stop = stop::requested();
  int missing = world_.size() - 1;
  for (Backoff backoff; missing > 0 && backoff.seconds() < limit; backoff.pause())
    for (int rank = 1; rank < world_.size(); ++rank) {
      auto& from = awaited[rank];
      if (from.done || !from.transfer.done()) continue;
      from.done = true;
      --missing;
      auto told = from_text(std::string_view(from.text).substr(0, from.transfer.bytes()));
      answers[rank] = std::move(told.answer);
      stop |= told.stop;
    }
  if (stop) answers[0] = {nullptr, Error(Exit::requeue, "told to stop; nothing was left behind")};
  if (missing == 0) return answers;
  std::vector<int> silent;
  for (int rank = 1; rank < world_.size(); ++rank)
    if (!awaited[rank].done) silent.push_back(rank);
  const auto what = missing > 1 && missing == world_.size() - 1
                        ? fmt::format("{} gets no answers", name(0))
                        : fmt::format("{} {} not answered for {:.0f} s", list_of(silent, *this),
                                      missing == 1 ? "has" : "have", since_ask_.seconds());
  throw hang(what);
}

Error Checkup::hang(const std::string& what) const {
  print(current_.load(), "HANGS", what);
  return Error(Exit::timeout, fmt::format("{}, in the check \"{}\"", what, current_.load()), hint);
}

double Checkup::seconds_left() const {
  return std::max(0.0, limit_ - since_ask_.seconds());
}

void Checkup::agree_with_root(const std::optional<Error>& error) const {
  const auto mine = error ? json{static_cast<int>(error->exit()), error->what(), error->hint()} : json();
  const auto told = json::parse(group_.broadcast(to_text(mine)));
  if (told.is_null()) return;
  throw AgreedError({static_cast<Exit>(told[0].get<int>()), told[1].get<std::string>(), told[2].get<std::string>()},
                    world_.group());
}

// What no rank could do, in the words of the lowest; nothing when one could.
std::optional<Error> Checkup::find_common_error(const std::vector<Answer>& answers) const {
  const Error* first = nullptr;
  for (const auto& answer : answers) {
    if (!answer.error && !answer.facts.is_null()) return std::nullopt;
    if (answer.error && (!first || (first->exit() == Exit::timeout && !waited(answer)))) first = &*answer.error;
  }
  return first ? std::optional(*first) : std::nullopt;
}

std::vector<Answer> Checkup::ask(const char* check, double seconds, const Work& work) {
  const TimeLimit backstop(seconds + 6 * grace_seconds,
                           fmt::format("{} does not come to the end of the check \"{}\"", name(world_.rank()), check));
  current_ = check;
  limit_ = seconds;
  since_ask_ = Stopwatch();
  group_.set_time_limit(seconds);
  auto own = answer_of(work);
  const double left = seconds_left() + grace_seconds;
  group_.set_time_limit(left + grace_seconds);
  if (!is_root()) {
    send_answer(own, left);
    try {
      agree_with_root({});
    } catch (const AgreedError&) {
      throw;
    } catch (const Error&) {
      throw Error(Exit::timeout, fmt::format("{} does not go on after the check \"{}\"", name(0), check), hint);
    }
    return std::vector<Answer>(static_cast<std::size_t>(world_.size()));
  }
  auto answers = collect(std::move(own), left);
  auto error =
      answers[0].error && answers[0].error->exit() == Exit::requeue ? answers[0].error : find_common_error(answers);
  if (error) print(check, error->exit() == Exit::requeue ? "stopped" : "failed", error->what());
  agree_with_root(error);
  return answers;
}

json Checkup::tell(const json& facts) {
  return json::parse(group_.broadcast(to_text(facts)));
}

void Checkup::print(const std::string& check, const std::string& result, const std::string& detail) const {
  auto text = visible(detail);
  for (auto place = text.find('\n'); place != text.npos; place = text.find('\n', place + 1))
    text.replace(place, 1, "\n" + std::string(26, ' '));
  fmt::print("  {:<13} {:<9} {}\n", check, result, text);
  std::fflush(stdout);
}

void Checkup::conclude(const std::string& check, const Row& row) {
  std::optional<Error> error;
  if (is_root()) {
    std::string text = row.detail;
    for (std::size_t i = 0; i < row.suspects.size(); ++i)
      text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", name(row.suspects[i].rank), row.suspects[i].what);
    print(check, row.suspects.empty() ? row.result : "SUSPECT", text);
    for (const auto& suspect : row.suspects) suspects_.push_back({suspect.rank, check + ": " + suspect.what});
    if (row.ends && !row.suspects.empty()) error = suspicion();
  }
  agree_with_root(error);
}

void Checkup::skip(const std::string& check, const std::string& why) {
  conclude(check, {.detail = why, .suspects = {}, .result = "not used"});
}

Error Checkup::suspicion() const {
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, suspects_.size()); ++i)
    text += fmt::format("{}{}: {}", i ? "\n" : "", name(suspects_[i].rank), suspects_[i].what);
  if (suspects_.size() > most) text += fmt::format("\nand {} more", suspects_.size() - most);
  return Error(Exit::timeout, text, hint);
}

void Checkup::finish() {
  agree_with_root(suspects_.empty() ? std::nullopt : std::optional(suspicion()));
}

std::vector<Suspicion> failed_alone(const std::vector<Answer>& answers) {
  std::vector<Suspicion> suspects, waiting;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (answers[rank].error)
      (waited(answers[rank]) ? waiting : suspects).push_back({static_cast<int>(rank), answers[rank].error->what()});
  return suspects.empty() ? waiting : suspects;
}

void send(const Group& group, int to, std::span<const std::byte> bytes, double seconds) {
  auto transfer = group.sender(to, tag_message, bytes);
  transfer.start(bytes.size());
  if (!finished_within(transfer, seconds)) fail(Exit::timeout, "rank {} did not take a message", to);
}

void receive(const Group& group, int from, std::span<std::byte> bytes, double seconds) {
  auto transfer = group.receiver(from, tag_message, bytes);
  transfer.start();
  if (!finished_within(transfer, seconds)) fail(Exit::timeout, "no message from rank {}", from);
}

}  // namespace millrace::preflight
