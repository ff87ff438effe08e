#pragma once
#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "millrace/core/stopwatch.h"
#include "millrace/download/fetcher.h"
#include "url.h"

namespace millrace {

// What to wait for: none are read on while their hosts are shut; nobody is asked while known hosts are, or once none of
// them has answered.
enum class Pause { none, shut_hosts, question, network };

// Whether to go on, by what the last rows came to.
// NOTE [Lists of shut hosts]: rows of a host that is shut fail as fast as they are read. A list that has hardly any
// others would be written off for one bad minute of its host. So none is read on while nearly all of the last results
// are such, until the host is asked again: for an hour, since it may be gone for good. Rows that are asked for again
// have failed so before, and nothing is lost where they do once more.
// NOTE [Networks that are away]: rows fail fast, too, while this machine's own network or name server is away. So when
// nearly all of the last ones failed, as hosts do that do not answer, some that gave an image are asked for their
// robots.txt. If one answers, it is the rows' hosts that are dead. If none does, nobody is asked for rows until one
// does, however long that takes. Before the first image it is hosts of the failed rows that are asked, for an hour. A
// few hosts may be gone themselves, as may all of one owner: then nothing is concluded.
class ResultWatch {
 public:
  // Rows are asked for with `options`, known hosts every `pause` while none answers. What may be gone for good is
  // waited for as long as `patience_seconds`.
  explicit ResultWatch(FetchOptions options, std::chrono::milliseconds pause = std::chrono::seconds(5),
                       double patience_seconds = 3600);

  void note(const std::string& url, const Fetched& fetched, bool is_retry);
  // Called often, takes no time. has_more: there are rows that could be read now.
  Pause look(bool has_more);

 private:
  using Clock = std::chrono::steady_clock;

  Pause ask_known_hosts();
  bool is_patient() const;

  const FetchOptions options_;
  const std::chrono::milliseconds pause_between_;
  const double patience_seconds_;
  const double results_;  // that have a say, the later ones more
  double lost_share_ = 0, shut_share_ = 0;
  Clock::time_point last_shut_;
  Pause pause_ = Pause::none;
  Stopwatch since_look_;
  double waited_seconds_ = 0;  // for what may be gone for good
  bool has_image_ = false;
  std::deque<Url> known_;  // the last hosts of different owners that gave an image; failed ones before the first image
  std::optional<Fetcher> question_;
  Clock::time_point next_question_;
};

}  // namespace millrace
