#include "preflight/checkup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "millrace/comm/agree.h"
#include "millrace/comm/backoff.h"
#include "millrace/comm/fault.h"
#include "millrace/core/json_text.h"
#include "millrace/core/phase.h"
#include "millrace/core/secrets.h"
#include "millrace/core/stop.h"
#include "millrace/core/visible.h"
#include "output.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr std::size_t answer_bytes = 256 << 10;
constexpr double grace_seconds = 5;  // for an answer to arrive, once its rank's time is over
constexpr const char* hint = "leave that node out (srun --exclude, another list of hosts), or repair it";
constexpr const char* hint_for_all =
    "each has waited for another, which names no node: look at the network between the hosts, their load (more ranks "
    "than cores?) and MPI's settings";

enum Tag { tag_answer = 1, tag_message };

Answer answer_of(const Checkup::Work& work) {
  Answer answer;
  const Stopwatch watch;
  try {
    answer.facts = work();
    if (answer.facts.is_object()) answer.facts["seconds"] = watch.seconds();
  } catch (...) {
    answer.error = present_error();
    answer.is_to_blame = fault::is_this_rank_to_blame();
  }
  if (stop::requested()) return {nullptr, Error(Exit::requeue, "told to stop; nothing was left behind")};
  return answer;
}

// What does not fit into a message is not sent: of an error its beginning is, of facts nothing.
Answer fitting(Answer answer) {
  const auto bytes = dump_any(json(answer)).size();
  if (bytes <= answer_bytes) return answer;
  constexpr std::size_t longest = answer_bytes / 16;  // of two texts, and six characters of JSON may stand for one
  if (const auto& error = answer.error)
    return {nullptr,
            Error(error->exit(), std::string(error->what()).substr(0, longest), error->hint().substr(0, longest)),
            answer.is_to_blame};
  return {nullptr, Error(Exit::usage, fmt::format("its answer of {} KiB is larger than a message may be, {} KiB",
                                                  bytes >> 10, answer_bytes >> 10))};
}

// Ranks that have only waited for others say so with Exit::suspect_node.
bool waited(const Answer& answer) {
  return answer.error && answer.error->exit() == Exit::suspect_node && !answer.is_to_blame;
}

bool failed(const Answer& answer) {
  return answer.error && !waited(answer);
}

// Waits until a message has gone its way; false when that takes longer.
bool finished_within(double seconds, Transfer transfer, std::size_t bytes = 0) {
  transfer.start(bytes);
  Backoff backoff;
  while (!transfer.done()) {
    if (backoff.seconds() > seconds) return false;
    backoff.pause();
  }
  return true;
}

// The first of many.
std::string join_first(const std::vector<std::string>& texts, const char* separator) {
  constexpr std::size_t most = 8;
  const auto some = std::span(texts).first(std::min(most, texts.size()));
  auto text = fmt::format("{}", fmt::join(some, separator));
  if (texts.size() > most) text += fmt::format("{}and {} more", separator, texts.size() - most);
  return text;
}

void print_row(const char* check, const char* result, const std::string& detail) {
  auto text = without_secrets(detail);
  for (auto place = text.find('\n'); place != text.npos; place = text.find('\n', place + 1))
    text.replace(place, 1, "\n" + std::string(26, ' '));
  say("  {:<13} {:<9} {}\n", check, result, visible(text));
}

}  // namespace

void to_json(json& json, const Answer& answer) {
  json = {{"facts", answer.facts}, {"is_to_blame", answer.is_to_blame}};
  if (const auto& error = answer.error) json["error"] = {static_cast<int>(error->exit()), error->what(), error->hint()};
}

void from_json(const json& json, Answer& answer) {
  answer.facts = json.at("facts");
  answer.is_to_blame = json.at("is_to_blame");
  if (!json.contains("error")) return;
  const auto& error = json.at("error");
  answer.error = Error(static_cast<Exit>(error[0].get<int>()), error[1].get<std::string>(), error[2]);
}

std::string number_text(double number) {
  return fmt::format("{}", number);
}

Facts<double> numbers_of(const Answers& answers, const std::string& key) {
  Facts<double> numbers;
  for (const auto& [rank, text] : facts_of<std::string>(answers, key)) numbers.push_back({rank, std::stod(text)});
  return numbers;
}

std::vector<Suspicion> failed_alone(const Answers& answers) {
  std::vector<Suspicion> suspects;
  for (const auto& is_suspect : {failed, waited}) {
    for (std::size_t rank = 0; rank < answers.size(); ++rank)
      if (is_suspect(answers[rank])) suspects.push_back({static_cast<int>(rank), answers[rank].error->what()});
    if (!suspects.empty()) break;
  }
  return suspects;
}

// One that was told to stop stops all.
std::optional<Error> Checkup::find_common_error(const Answers& answers) const {
  const auto could = [](const Answer& answer) { return !answer.error && !answer.facts.is_null(); };
  const auto stopped = [](const Answer& answer) { return answer.error && answer.error->exit() == Exit::requeue; };
  if (const auto found = std::ranges::find_if(answers, stopped); found != answers.end()) return found->error;
  if (std::ranges::any_of(answers, could)) return std::nullopt;
  const bool have_some_waited = std::ranges::any_of(answers, waited);
  if (have_some_waited && std::ranges::any_of(answers, failed)) return std::nullopt;  // named alone
  const auto all = failed_alone(answers);
  if (all.empty()) return std::nullopt;
  const auto& lowest = *answers[all[0].rank].error;
  return have_some_waited && all.size() > 1 ? nobody_came_through(all, lowest.hint()) : lowest;
}

// For whom the lowest waited is nobody's judgement: that rank waited, too.
Error Checkup::nobody_came_through(const std::vector<Suspicion>& all, const std::string& hint_of_lowest) const {
  return Error(Exit::suspect_node,
               fmt::format("none of {} ranks came to the end of the check \"{}\" within {:.0f} s; {}: {}", all.size(),
                           current_.load(), limit_, name(all[0].rank), all[0].what),
               fmt::format("{}{}{}", hint_for_all, hint_of_lowest.empty() ? "" : "; ", hint_of_lowest));
}

Checkup::Checkup(const World& world, std::vector<std::string> hosts, Deadline& deadline)
    : group_(world.group().duplicate()), hosts_(std::move(hosts)), deadline_(deadline) {
  phase::current = phase::checking;
}

std::string Checkup::name(int rank) const {
  return fmt::format("rank {} on {}", rank, hosts_[static_cast<std::size_t>(rank)]);
}

Answers Checkup::collect(Answer own, double limit) const {
  const auto ranks = hosts_.size();
  // Not filled with zeros: of a thousand ranks, these are 270 MB that nobody touches.
  const auto texts = std::make_unique_for_overwrite<char[]>(ranks * answer_bytes);
  std::vector<Transfer> transfers(ranks);
  std::vector<int> silent;
  for (std::size_t rank = 1; rank < ranks; ++rank) {
    const std::span text(texts.get() + rank * answer_bytes, answer_bytes);
    transfers[rank] = group_.receiver(static_cast<int>(rank), tag_answer, std::as_writable_bytes(text));
    transfers[rank].start();
    silent.push_back(static_cast<int>(rank));
  }
  Answers answers(ranks);
  answers[0] = std::move(own);
  for (Backoff backoff; !silent.empty() && backoff.seconds() < limit; backoff.pause())
    std::erase_if(silent, [&](int rank) {
      if (!transfers[rank].done()) return false;
      const std::string_view text(texts.get() + rank * answer_bytes, transfers[rank].bytes());
      answers[rank] = json::parse(text).get<Answer>();
      return true;
    });
  if (silent.empty()) return answers;
  // Who waits for one that has failed, in a call without a limit, is silent too.
  if (const auto found = std::ranges::find_if(answers, failed); found != answers.end())
    throw hang(fmt::format("{}: {}", name(static_cast<int>(found - answers.begin())), found->error->what()));
  if (silent.size() > 1 && silent.size() + 1 == ranks) throw hang(fmt::format("{} gets no answers", name(0)));
  std::vector<std::string> names;
  for (const int rank : silent) names.push_back(name(rank));
  throw hang(fmt::format("{} {} not answered for {:.0f} s", join_first(names, ", "), names.size() == 1 ? "has" : "have",
                         since_ask_.seconds()));
}

Error Checkup::hang(const std::string& what) const {
  print_row(current_, "HANGS", what);
  return Error(Exit::suspect_node, fmt::format("{}, in the check \"{}\"", what, current_.load()), hint);
}

Answers Checkup::ask(const char* check, double seconds, const Work& work) {
  deadline_.move(seconds + 6 * grace_seconds,
                 fmt::format("{} does not come to the end of the check \"{}\"", name(rank()), check));
  current_ = check;
  limit_ = seconds;
  since_ask_ = Stopwatch();
  group_.set_time_limit(seconds);
  const auto own = fitting(answer_of(work));
  const double left = seconds_left() + grace_seconds;
  group_.set_time_limit(left + grace_seconds);
  std::string all;
  if (is_root()) {
    all = dump_any(json(collect(own, left)));
  } else {
    const auto text = dump_any(json(own));
    if (!finished_within(left, group_.sender(0, tag_answer, std::as_bytes(std::span(text))), text.size()))
      fail(Exit::suspect_node, "{} takes no answers", name(0));
  }
  try {
    all = group_.broadcast(std::move(all));
  } catch (const Error&) {
    if (is_root()) throw;
    if (failed(own)) throw Error(Exit::suspect_node, own.error->what(), own.error->hint());
    throw Error(Exit::suspect_node, fmt::format("{} does not go on after the check \"{}\"", name(0), check), hint);
  }
  auto answers = json::parse(all).get<Answers>();  // rank 0, too: what is no UTF-8 is replaced by now
  if (const auto error = find_common_error(answers)) {
    if (is_root()) print_row(check, error->exit() == Exit::requeue ? "stopped" : "failed", error->what());
    throw AgreedError(*error, group_);
  }
  failed_alone_ = failed_alone(answers);
  return answers;
}

Answers Checkup::demand(const char* check, double seconds, const Work& work) {
  auto answers = ask(check, seconds, work);
  if (!failed_alone_.empty()) conclude([] { return Row{.detail = "", .ends = true}; });
  return answers;
}

void Checkup::conclude(const std::function<Row()>& judge) {
  Row row;
  try {
    row = judge();
  } catch (...) {
    const auto error = present_error();
    if (is_root()) print_row(current_, "failed", error.what());
    throw AgreedError(error, group_);
  }
  auto suspects = std::exchange(failed_alone_, {});
  suspects.insert(suspects.end(), row.suspects.begin(), row.suspects.end());
  for (const auto& [rank, what] : suspects) {
    row.detail += fmt::format("{}{}: {}", row.detail.empty() ? "" : "\n", name(rank), what);
    suspicions_.push_back(fmt::format("{}: {}: {}", name(rank), current_.load(), what));
  }
  if (is_root()) print_row(current_, suspects.empty() ? "ok" : "SUSPECT", row.detail);
  if (row.ends && !suspects.empty()) finish();
}

void Checkup::skip(const char* check, const std::string& why) const {
  if (is_root()) print_row(check, "not used", why);
}

void Checkup::finish() const {
  if (!suspicions_.empty()) throw AgreedError({Exit::suspect_node, join_first(suspicions_, "\n"), hint}, group_);
}

double Checkup::seconds_left() const {
  return std::max(0.0, limit_ - since_ask_.seconds());
}

void Checkup::send(int to, std::span<const std::byte> bytes) const {
  if (!finished_within(seconds_left(), group_.sender(to, tag_message, bytes), bytes.size()))
    fail(Exit::suspect_node, "{} did not take a message", name(to));
}

void Checkup::receive(int from, std::span<std::byte> bytes) const {
  if (!finished_within(seconds_left(), group_.receiver(from, tag_message, bytes)))
    fail(Exit::suspect_node, "no message from {}", name(from));
}

}  // namespace millrace::preflight
