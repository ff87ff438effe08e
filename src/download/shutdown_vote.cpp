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

ShutdownVote::ShutdownVote(const Group& group) : group_(group.duplicate()) {
  const int others = group_.rank() == 0 ? group_.size() - 1 : 1;
  received_.resize(group_.size() > 1 ? others : 0);
  arrived_.resize(received_.size());
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const int other = group_.rank() == 0 ? static_cast<int>(i) + 1 : 0;
    receivers_.push_back(group_.receiver(other, tag, std::as_writable_bytes(std::span(&received_[i], 1))));
    senders_.push_back(group_.sender(other, tag, std::as_bytes(std::span(sent_))));
    receivers_.back().start();
  }
}

bool ShutdownVote::must_stop() {
  look();
  if (stop_ && !has_sent_) send(stop_);
  return stop_;
}

bool ShutdownVote::wait() {
  const auto all_arrived = [&] { return std::all_of(arrived_.begin(), arrived_.end(), [](bool a) { return a; }); };
  const bool is_root = group_.rank() == 0;
  if (!is_root && !has_sent_) send(stop_);
  for (look(); !all_arrived(); look()) {
    if (is_root && stop_ && !has_sent_) send(stop_);
    std::this_thread::sleep_for(nap);
  }
  if (!has_sent_) send(stop_);
  for (Transfer& sender : senders_)
    while (!sender.done()) std::this_thread::sleep_for(nap);
  return stop_;
}

void ShutdownVote::look() {
  stop_ |= stop::requested();
  for (std::size_t i = 0; i < receivers_.size(); ++i) {
    if (arrived_[i] || !receivers_[i].done()) continue;
    arrived_[i] = true;
    stop_ |= received_[i] != 0;
  }
}

void ShutdownVote::send(bool stop) {
  has_sent_ = true;
  sent_[0] = stop;
  for (Transfer& sender : senders_) sender.start(1);
}

}  // namespace millrace
