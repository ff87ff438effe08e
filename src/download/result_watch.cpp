#include "result_watch.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "millrace/core/log.h"
#include "millrace/core/units.h"

namespace millrace {

namespace {

constexpr double nearly_all = 0.9;
constexpr std::size_t fewest_known = 8, most_known = 16;

bool is_lost(const Fetched& fetched) {
  const auto* const failure = std::get_if<Failure>(&fetched.result);
  return failure && is_unanswered(*failure);
}

// Names of one owner mostly share their last two labels.
std::string_view owner_of(std::string_view host) {
  const auto dot = host.rfind('.');
  const auto before = dot == host.npos || dot == 0 ? host.npos : host.rfind('.', dot - 1);
  return before == host.npos ? host : host.substr(before + 1);
}

// A robots.txt may be asked for whatever it says. Where it takes longer, the network is as good as away.
FetchOptions options_of_question(FetchOptions options) {
  constexpr double longest_seconds = 10;
  options.timeout_seconds = std::min(options.timeout_seconds, longest_seconds);
  options.retries = 0;
  options.opt_out = false;
  options.connections = most_known;
  return options;
}

}  // namespace

ResultWatch::ResultWatch(FetchOptions options, std::chrono::milliseconds pause, double patience_seconds)
    : options_(options_of_question(options)),
      pause_between_(pause),
      patience_seconds_(patience_seconds),
      results_(4.0 * options.connections) {}

void ResultWatch::note(const std::string& url, const Fetched& fetched, bool is_retry) {
  const bool has_image = std::holds_alternative<std::string>(fetched.result);
  const bool lost = is_lost(fetched);
  lost_share_ += ((lost ? 1 : 0) - lost_share_) / results_;
  if (is_retry && !has_image) return;
  shut_share_ += ((fetched.host_is_shut ? 1 : 0) - shut_share_) / results_;
  if (fetched.host_is_shut) last_shut_ = Clock::now();
  if (lost_share_ < 0.5 && shut_share_ < 0.5) waited_seconds_ = 0;

  if (!has_image && (has_image_ || !lost)) return;
  if (has_image && !std::exchange(has_image_, true)) known_.clear();
  auto parsed = parse_url(url);
  auto* const place = std::get_if<Url>(&parsed);
  const auto is_same = [&](const Url& known) { return owner_of(known.host) == owner_of(place->host); };
  if (!place || std::any_of(known_.begin(), known_.end(), is_same)) return;
  known_.push_back(std::move(*place));
  if (known_.size() > most_known) known_.pop_front();
}

bool ResultWatch::is_patient() const {
  return waited_seconds_ < patience_seconds_;
}

Pause ResultWatch::look(bool has_more) {
  const double seconds = awake_seconds(since_look_.lap());
  const Pause before = std::exchange(pause_, ask_known_hosts());
  if (pause_ == Pause::none && shut_share_ >= nearly_all && is_patient() &&
      Clock::now() < last_shut_ + options_.host_shut_for)
    pause_ = Pause::shut_hosts;
  const bool may_be_gone = (pause_ == Pause::shut_hosts && has_more) || (pause_ == Pause::network && !has_image_);
  if (pause_ == Pause::shut_hosts && has_more && waited_seconds_ == 0) {
    log::warning(
        "nearly all rows fail since their hosts do not answer, or only ask to wait: no more are read for up to {}",
        format_time(patience_seconds_));
  }
  if (pause_ == Pause::network && before != pause_) {
    log::warning(
        "none of the last {} hosts answers: this machine's network or name server is away, or they shut it out. No "
        "rows are asked for until one of them answers{}",
        known_.size(), has_image_ ? "" : ", for up to " + format_time(patience_seconds_));
  }
  if (before == Pause::network && pause_ != before) log::info("rows are asked for again");
  if (may_be_gone) waited_seconds_ += seconds;
  return pause_;
}

Pause ResultWatch::ask_known_hosts() {
  const bool is_likely = lost_share_ >= nearly_all && known_.size() >= fewest_known && (has_image_ || is_patient());
  bool has_answer = false;
  if (is_likely && !question_ && Clock::now() >= next_question_) {
    question_.emplace(options_);  // anew each time, so that names are looked up again
    for (std::size_t i = 0; i < known_.size(); ++i) question_->add(i, known_[i].origin + "/robots.txt");
  }
  if (is_likely && question_) {
    for (const Fetched& answer : question_->poll(std::chrono::milliseconds(0))) has_answer |= !is_lost(answer);
  }
  if (!is_likely || has_answer) {
    question_.reset();
    next_question_ = {};
    if (has_answer) lost_share_ = 0;
    if (has_answer && pause_ == Pause::network) shut_share_ = 0;
    return Pause::none;
  }
  if (question_ && question_->pending() == 0) {
    question_.reset();
    next_question_ = Clock::now() + pause_between_;
  }
  return question_ && pause_ != Pause::network ? Pause::question : Pause::network;
}

}  // namespace millrace
