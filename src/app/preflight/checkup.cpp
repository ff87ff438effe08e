#include "preflight/checkup.h"

#include <cstdio>
#include <memory>

#include "millrace/comm/agree.h"
#include "millrace/comm/backoff.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/core/visible.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr std::size_t answer_bytes = 256 << 10;
constexpr double grace_seconds = 5;  // for an answer to arrive, once its rank's time is over
constexpr std::size_t most_names = 8;
constexpr const char* hint = "leave that node out (srun --exclude, another list of hosts), or repair it";

enum Tag { tag_answer = 1, tag_message };

// File names may be any bytes.
std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

Answer answer_of(const Checkup::Work& work) {
  Answer answer;
  try {
    answer.facts = work();
  } catch (...) {
    answer.error = present_error();
  }
  if (stop::requested()) return {nullptr, Error(Exit::requeue, "told to stop; nothing was left behind")};
  return answer;
}

// Ranks that have only waited for others say so with Exit::timeout.
bool waited(const Answer& answer) {
  return answer.error && answer.error->exit() == Exit::timeout;
}

// What no rank could do, in the words of the lowest; nothing when one could. One that was told to stop stops all.
std::optional<Error> find_common_error(const Answers& answers) {
  const Error* first = nullptr;
  bool somebody_could = false;
  for (const auto& answer : answers) {
    if (answer.error && answer.error->exit() == Exit::requeue) return answer.error;
    somebody_could |= !answer.error && !answer.facts.is_null();
    if (answer.error && (!first || (first->exit() == Exit::timeout && !waited(answer)))) first = &*answer.error;
  }
  return first && !somebody_could ? std::optional(*first) : std::nullopt;
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

void print_row(const std::string& check, const std::string& result, const std::string& detail) {
  auto text = visible(detail);
  for (auto place = text.find('\n'); place != text.npos; place = text.find('\n', place + 1))
    text.replace(place, 1, "\n" + std::string(26, ' '));
  fmt::print("  {:<13} {:<9} {}\n", check, result, text);
  std::fflush(stdout);
}

}  // namespace

json to_json(const std::optional<Error>& error) {
  return error ? json{static_cast<int>(error->exit()), error->what(), error->hint()} : json();
}

std::optional<Error> error_from(const json& json) {
  if (json.is_null()) return std::nullopt;
  return Error(static_cast<Exit>(json[0].get<int>()), json[1].get<std::string>(), json[2].get<std::string>());
}

Checkup::Checkup(const World& world, std::vector<std::string> hosts, Deadline& deadline)
    : group_(world.group().duplicate()),
      answers_(world.group().duplicate()),
      hosts_(std::move(hosts)),
      deadline_(deadline) {
  phase::current = "in preflight";
}

std::string Checkup::name(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_[static_cast<std::size_t>(rank)]);
}

void Checkup::send_answer(const Answer& answer, double limit) const {
  const auto text = to_text({{"facts", answer.facts}, {"error", to_json(answer.error)}});
  ensure(text.size() <= answer_bytes, "an answer fits into a message");
  auto sender = answers_.sender(0, tag_answer, std::as_bytes(std::span(text)));
  sender.start(text.size());
  if (!finished_within(sender, limit)) fail(Exit::timeout, "{} takes no answers", name(0));
}

Answers Checkup::collect(Answer own, double limit) const {
  const auto ranks = hosts_.size();
  // Not filled with zeros: of a thousand ranks, these are 270 MB that nobody touches.
  const auto texts = std::make_unique_for_overwrite<char[]>(ranks * answer_bytes);
  std::vector<Transfer> transfers(ranks);
  std::vector<int> silent;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const std::span text(texts.get() + rank * answer_bytes, answer_bytes);
    transfers[rank] = answers_.receiver(static_cast<int>(rank), tag_answer, std::as_writable_bytes(text));
    transfers[rank].start();
    silent.push_back(static_cast<int>(rank));
  }
  Answers answers(ranks);
  answers[0] = std::move(own);
  for (Backoff backoff; !silent.empty() && backoff.seconds() < limit; backoff.pause())
    std::erase_if(silent, [&](int rank) {
      if (!transfers[rank].done()) return false;
      const auto told = json::parse(std::string_view(texts.get() + rank * answer_bytes, transfers[rank].bytes()));
      answers[rank] = {told.at("facts"), error_from(told.at("error"))};
      return true;
    });
  if (silent.empty()) return answers;
  // Who waits for one that has failed, in a call without a limit, is silent too.
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (answers[rank].error && !waited(answers[rank]))
      throw hang(fmt::format("{}: {}", name(static_cast<int>(rank)), answers[rank].error->what()));
  if (silent.size() > 1 && silent.size() + 1 == ranks) throw hang(fmt::format("{} gets no answers", name(0)));
  std::string names;
  for (std::size_t i = 0; i < std::min(most_names, silent.size()); ++i) names += (i ? ", " : "") + name(silent[i]);
  if (silent.size() > most_names) names += fmt::format(" and {} more", silent.size() - most_names);
  throw hang(
      fmt::format("{} {} not answered for {:.0f} s", names, silent.size() == 1 ? "has" : "have", since_ask_.seconds()));
}

Error Checkup::hang(const std::string& what) const {
  print_row(current_.load(), "HANGS", what);
  return Error(Exit::timeout, fmt::format("{}, in the check \"{}\"", what, current_.load()), hint);
}

void Checkup::agree_with_root(const std::optional<Error>& error) const {
  const auto agreed = error_from(json::parse(group_.broadcast(to_text(to_json(error)))));
  if (agreed) throw AgreedError(*agreed, group_);
}

Answers Checkup::ask(const char* check, double seconds, const Work& work) {
  deadline_.move(seconds + 6 * grace_seconds,
                 fmt::format("{} does not come to the end of the check \"{}\"", name(rank()), check));
  current_ = check;
  limit_ = seconds;
  since_ask_ = Stopwatch();
  group_.set_time_limit(seconds);
  auto own = answer_of(work);
  const double left = seconds_left() + grace_seconds;
  group_.set_time_limit(left + grace_seconds);
  if (is_root()) {
    auto answers = collect(std::move(own), left);
    const auto error = find_common_error(answers);
    if (error) print_row(check, error->exit() == Exit::requeue ? "stopped" : "failed", error->what());
    agree_with_root(error);
    return answers;
  }
  send_answer(own, left);
  try {
    agree_with_root({});
  } catch (const AgreedError&) {
    throw;
  } catch (const Error&) {
    if (own.error && !waited(own)) throw Error(Exit::timeout, own.error->what(), own.error->hint());
    throw Error(Exit::timeout, fmt::format("{} does not go on after the check \"{}\"", name(0), check), hint);
  }
  return Answers(hosts_.size());
}

Answers Checkup::demand(const char* check, double seconds, const Work& work) {
  auto answers = ask(check, seconds, work);
  if (broadcast(!failed_alone(answers).empty()).get<bool>())
    conclude(check, [&] { return Row{.detail = "", .suspects = failed_alone(answers), .ends = true}; });
  return answers;
}

void Checkup::check(const char* check, double seconds, const Work& work, const Judge& judge) {
  const auto answers = ask(check, seconds, work);
  conclude(check, [&] {
    auto row = judge(answers);
    const auto failed = failed_alone(answers);
    row.suspects.insert(row.suspects.begin(), failed.begin(), failed.end());
    return row;
  });
}

void Checkup::conclude(const std::string& check, const std::function<Row()>& judge) {
  std::optional<Error> error;
  if (is_root()) {
    try {
      const auto row = judge();
      std::string text = row.detail;
      for (const auto& suspect : row.suspects)
        text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", name(suspect.rank), suspect.what);
      print_row(check, row.suspects.empty() ? "ok" : "SUSPECT", text);
      for (const auto& suspect : row.suspects) suspects_.push_back({suspect.rank, check + ": " + suspect.what});
      if (row.ends && !row.suspects.empty()) error = suspicion();
    } catch (...) {
      error = present_error();
      print_row(check, "failed", error->what());
    }
  }
  agree_with_root(error);
}

json Checkup::broadcast(const json& facts) const {
  return json::parse(group_.broadcast(to_text(facts)));
}

void Checkup::skip(const std::string& check, const std::string& why) {
  if (is_root()) print_row(check, "not used", why);
}

Error Checkup::suspicion() const {
  std::string text;
  for (std::size_t i = 0; i < std::min(most_names, suspects_.size()); ++i)
    text += fmt::format("{}{}: {}", i ? "\n" : "", name(suspects_[i].rank), suspects_[i].what);
  if (suspects_.size() > most_names) text += fmt::format("\nand {} more", suspects_.size() - most_names);
  return Error(Exit::timeout, text, hint);
}

void Checkup::finish() const {
  agree_with_root(suspects_.empty() ? std::nullopt : std::optional(suspicion()));
}

std::vector<Suspicion> failed_alone(const Answers& answers) {
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
