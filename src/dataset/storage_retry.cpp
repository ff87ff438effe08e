#include "millrace/dataset/storage_retry.h"

#include <algorithm>

#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/units.h"

namespace millrace {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds first_pause{50}, max_pause{10'000};
constexpr milliseconds look{50};                    // a signal wakes nobody
constexpr StorageRetry::Seconds longest_wait{1e9};  // a clock counts nanoseconds, to 292 years

std::string to_text(StorageRetry::Seconds time) {
  return to_string(Duration::seconds(time.count()));
}

}  // namespace

void StorageRetry::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  ended_there_.notify_all();
}

void StorageRetry::Outage::begin(const StorageError& error) {
  began_ = true;
  name_ = error.name();
  since_ = Clock::now();
  pause_ = first_pause;
  const std::lock_guard lock(retry_.mutex_);
  const bool first = retry_.outages_++ == 0;
  if (retry_.retry_for_ <= Seconds::zero()) return;
  const auto text =
      fmt::format("{}: read failed: {}; trying again for up to {}", name_, error.why(), to_text(retry_.retry_for_));
  first ? log::warning("{}", text) : log::debug("{}", text);
}

void StorageRetry::Outage::wait(const StorageError& error) {
  if (stop::requested()) {  // which may be why it failed
    given_up_ = true;
    throw ReadingStopped(error.name());
  }
  if (!began_) begin(error);
  const auto end = since_ + std::chrono::duration_cast<Clock::duration>(std::min(retry_.retry_for_, longest_wait));
  const auto now = Clock::now();
  if (now >= end) {
    given_up_ = true;
    const std::string message =
        fmt::format("{}: read failed for {}: {}", error.name(), to_text(retry_.retry_for_), error.why());
    throw Error(Exit::io, message == error.what() ? message : fmt::format("{} ({})", message, error.what()),
                error.hint_and("see to the storage or the network, then start again; data.retry_for is how long a read "
                               "that fails is tried again"));
  }
  const auto until = std::min(now + pause_, end);
  pause_ = std::min<Clock::duration>(2 * pause_, max_pause);
  std::unique_lock lock(retry_.mutex_);
  while (Clock::now() < until && !retry_.ended_ && !stop::requested())
    retry_.ended_there_.wait_until(lock, std::min(Clock::now() + look, until));
  given_up_ = retry_.ended_ || stop::requested();
  if (given_up_) throw ReadingStopped(error.name());
}

StorageRetry::Outage::~Outage() {
  if (!began_) return;
  const std::lock_guard lock(retry_.mutex_);
  const bool last = --retry_.outages_ == 0;
  if (given_up_) return;
  const auto text = fmt::format("{}: can be read again, after {:.1f} s", name_, Seconds(Clock::now() - since_).count());
  last ? log::info("{}", text) : log::debug("{}", text);
}

}  // namespace millrace
