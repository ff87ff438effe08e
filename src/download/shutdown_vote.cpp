#include "shutdown_vote.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "millrace/core/stop.h"

namespace millrace {

namespace {

constexpr int tag = 1;
constexpr auto nap = std::chrono::milliseconds(20);

}  // namespace

ShutdownVote::ShutdownVote(const Group& group) : group_(group.duplicate()), expected_(group_.is_root() ? 2 : 1) {
  const int others = group_.is_root() ? group_.size() - 1 : 1;
  received_.resize(group_.size() > 1 ? others : 0);
  arrived_.resize(received_.size());
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const int other = group_.is_root() ? static_cast<int>(i) + 1 : 0;
    receivers_.push_back(group_.receiver(other, tag, std::as_writable_bytes(std::span(&received_[i], 1))));
    senders_.push_back(group_.sender(other, tag, std::as_bytes(std::span(&sent_, 1))));
    receivers_.back().start();
  }
}

bool ShutdownVote::must_stop() {
  look();
  if (stop_ && !has_sent_) send(stop_);
  return stop_;
}

bool ShutdownVote::wait(const Tell& tell) {
  return group_.is_root() ? collect_notices(tell) : wait_for_verdict();
}

bool ShutdownVote::collect_notices(const Tell& tell) {
  for (look(); !have_all_sent(1); look()) {
    if (stop_ && !has_sent_) send(stop_);
    if (tell && !stop_) tell(static_cast<int>(std::count(arrived_.begin(), arrived_.end(), 0)));
    std::this_thread::sleep_for(nap);
  }
  if (!has_sent_) send(stop_);
  for (look(); !have_all_sent(2); look()) std::this_thread::sleep_for(nap);
  finish_sends();
  return sent_ != 0;  // whatever has come since
}

bool ShutdownVote::wait_for_verdict() {
  if (!has_sent_) send(stop_);
  bool may_send = true;  // the second notice
  for (look(); !have_all_sent(1); look()) {
    if (may_send && stop_ && !sent_ && senders_[0].done()) {
      send(stop_);
      may_send = false;
    }
    std::this_thread::sleep_for(nap);
  }
  finish_sends();
  if (may_send) send(false);
  finish_sends();
  return received_[0] != 0;
}

void ShutdownVote::look() {
  stop_ |= stop::requested();
  for (std::size_t i = 0; i < receivers_.size(); ++i) {
    if (arrived_[i] == expected_ || !receivers_[i].done()) continue;
    stop_ |= received_[i] != 0;
    if (++arrived_[i] < expected_) receivers_[i].start();
  }
}

bool ShutdownVote::have_all_sent(int messages) const {
  return std::all_of(arrived_.begin(), arrived_.end(), [&](int arrived) { return arrived >= messages; });
}

void ShutdownVote::send(bool stop) {
  has_sent_ = true;
  sent_ = stop;
  for (Transfer& sender : senders_) sender.start(1);
}

void ShutdownVote::finish_sends() {
  for (Transfer& sender : senders_)
    while (!sender.done()) std::this_thread::sleep_for(nap);
}

}  // namespace millrace
