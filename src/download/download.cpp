#include "millrace/download/download.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>

#include "folder.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/open_files.h"
#include "millrace/core/queue.h"
#include "millrace/core/stopwatch.h"
#include "millrace/download/fetcher.h"
#include "shard_files.h"
#include "shutdown_vote.h"
#include "url_lists.h"

namespace millrace {

namespace {

constexpr std::size_t max_open_shards = 64;
constexpr std::uint64_t row_bits = 20;  // of a ticket; rows_per_file is below 2^20
constexpr double nearly_all = 0.9;
constexpr double patience_seconds = 3600;

// Of one rank: transfers from a host are shared out to all of them.
FetchOptions options_of(const DownloadConfig& config, const Group& group) {
  auto options = config.fetch_options();
  options.per_host = std::max(1, options.per_host / group.size());
  return options;
}

// One rank's part. This thread moves bytes; others judge, decode and store what arrived, and the one that stores a
// shard's last row writes its files.
class Downloader {
  using Clock = std::chrono::steady_clock;

 public:
  Downloader(const DownloadConfig& config, const Group& group, int threads)
      : config_(config),
        group_(group),
        options_(options_of(config, group)),
        lists_(config),
        fetcher_(options_),
        arrived_(2 * static_cast<std::size_t>(options_.connections)) {
    constexpr std::size_t files = 3;  // of a transfer: its socket, and two while its host's address is looked up
    allow_open_files(files * static_cast<std::size_t>(options_.connections));
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Downloader() { drop(); }

  // False when a signal ended it.
  bool run(ShutdownVote& vote) {
    while (!vote.must_stop()) {
      rethrow();
      open_shards();
      if (fetcher_.pending() == 0 && !next_) {
        finish();
        return true;
      }
      // A full queue would make this thread wait, and the transfers with it.
      const bool has_room = arrived_.size() < static_cast<std::size_t>(options_.connections);
      const Stopwatch round;
      for (Fetched& fetched : fetcher_.poll(std::chrono::milliseconds(has_room ? 200 : 20), has_room))
        hand_over(std::move(fetched));
      const bool waits = next_ && must_wait();
      if (waits) waited_seconds_ += round.seconds();
      if (group_.rank() == 0) progress_.show(fetcher_.pending(), group_.size(), waits);
    }
    drop();
    rethrow();
    return false;
  }

  const DownloadProgress& progress() const { return progress_; }
  // Why not all lists were read.
  const std::optional<Error>& failed_list() const { return failed_list_; }

 private:
  struct OpenShard {
    std::shared_ptr<Shard> shard;
    std::size_t left;  // rows still with the fetcher
  };
  struct Arrival {
    std::shared_ptr<Shard> shard;
    std::size_t index;
    std::variant<std::string, Failure> result;
  };

  // The next shards of this rank, until transfers have enough to choose from. Where they cannot be read the lists end:
  // what was begun is finished first.
  void open_shards() {
    const auto enough = 4 * static_cast<std::size_t>(options_.connections);
    try {
      while (fetcher_.pending() < enough && open_.size() < max_open_shards && read_next() && !must_wait()) {
        const bool finished = is_finished(config_, next_->shard);
        open(std::make_shared<Shard>(*std::exchange(next_, std::nullopt), config_.out.value), finished);
      }
    } catch (...) {
      failed_list_ = present_error();
      lists_ended_ = true;
      next_.reset();
      log::warning("{}; what was begun before is finished first", failed_list_->what());
    }
  }

  // Makes next_ the rows of this rank's next shard that there is work for; false at the end of the lists.
  bool read_next() {
    while (!next_ && !lists_ended_) {
      const std::uint64_t number = lists_.next_shard();
      const bool mine = number % group_.size() == static_cast<std::uint64_t>(group_.rank());
      const bool finished = mine && is_finished(config_, number);
      if (!mine || (finished && !config_.retry_failed)) {
        lists_ended_ = !lists_.skip();
        if (finished && !lists_ended_) progress_.add_shard_before();
        continue;
      }
      ListSlice slice = lists_.read();
      lists_ended_ = slice.rows.empty();
      if (!lists_ended_) next_ = std::move(slice);
    }
    return next_.has_value();
  }

  // NOTE [Lists of shut hosts]: rows of a host that is shut fail as fast as they are read. A list that has hardly any
  // others would be written off for one bad minute of its host. So none is read on while nearly all of the last results
  // are such, until the host is asked again: for an hour in all, since it may be gone for good.
  bool must_wait() const {
    return shut_share_ >= nearly_all && waited_seconds_ < patience_seconds && Clock::now() < last_shut_ + host_shut_for;
  }

  void watch_hosts(const Fetched& fetched) {
    const double results = 4.0 * options_.connections;  // that have a say, the later ones more
    shut_share_ += ((fetched.host_is_shut ? 1 : 0) - shut_share_) / results;
    if (fetched.host_is_shut) last_shut_ = Clock::now();
  }

  void open(std::shared_ptr<Shard> shard, bool retry) {
    std::vector<std::size_t> wanted;
    if (retry) {
      wanted = load_for_retry(config_, *shard);
      progress_.add_shard_before();
      if (wanted.empty()) return;
    } else {
      wanted.resize(shard->rows());
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = i;
    }
    shard->expect(wanted.size());
    for (const std::size_t index : wanted) fetcher_.add(shard->number() << row_bits | index, shard->row(index).url);
    open_.emplace(shard->number(), OpenShard{shard, wanted.size()});
  }

  void hand_over(Fetched fetched) {
    watch_hosts(fetched);
    const auto place = open_.find(fetched.ticket >> row_bits);
    OpenShard& open = place->second;
    arrived_.push({open.shard, fetched.ticket & ((1u << row_bits) - 1), std::move(fetched.result)});
    if (--open.left == 0) open_.erase(place);
  }

  void work() {
    while (auto arrival = arrived_.pop()) {
      if (dropped_) continue;
      try {
        settle(std::move(*arrival));
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
        dropped_ = true;
      }
    }
  }

  void settle(Arrival arrival) {
    Shard& shard = *arrival.shard;
    if (const std::string& damage = shard.row(arrival.index).damage; !damage.empty())
      arrival.result = Failure{FailureKind::bad_url, damage};
    auto* const body = std::get_if<std::string>(&arrival.result);
    auto image = body ? prepare_image(std::move(*body), shard.row(arrival.index).hash, config_)
                      : std::variant<StoredImage, Failure>(std::get<Failure>(std::move(arrival.result)));
    if (auto* const stored = std::get_if<StoredImage>(&image)) {
      shard.store(arrival.index, std::move(*stored));
      progress_.add_success();
    } else {
      progress_.add(std::get<Failure>(image));
      shard.store(arrival.index, std::get<Failure>(std::move(image)));
    }
    if (!shard.finish_one()) return;
    write_shard(config_, shard);
    progress_.add_shard();
  }

  void finish() {
    arrived_.close();
    workers_.clear();
    rethrow();
  }

  // Gives up what is not published yet; an archive that is being written is still finished.
  void drop() {
    dropped_ = true;
    arrived_.close();
    workers_.clear();
  }

  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }

  const DownloadConfig& config_;
  const Group& group_;
  const FetchOptions options_;
  UrlLists lists_;
  bool lists_ended_ = false;
  std::optional<Error> failed_list_;
  std::optional<ListSlice> next_;  // read, not yet opened
  double shut_share_ = 0;          // of rows whose host is shut, among the last results
  Clock::time_point last_shut_;
  double waited_seconds_ = 0;  // for shut hosts, in all
  Fetcher fetcher_;
  std::unordered_map<std::uint64_t, OpenShard> open_;  // by number
  BoundedQueue<Arrival> arrived_;
  DownloadProgress progress_;
  std::atomic<bool> dropped_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::vector<std::jthread> workers_;
};

}  // namespace

DownloadPlan plan_download(const DownloadConfig& config) {
  check_folder(config);
  DownloadPlan plan;
  plan.lists = expand_lists(config.urls).size();
  UrlLists lists(config);
  while (lists.skip()) plan.finished += is_finished(config, plan.shards++);
  return plan;
}

DownloadResult run_download(const DownloadConfig& config, const Group& group, int threads) {
  on_root(group, [&] {
    check_folder(config);
    UrlLists(config).check();
    open_folder(config);
  });
  Downloader downloader(config, group, threads);
  ShutdownVote vote(group);
  downloader.run(vote);
  const bool stopped = vote.wait();
  log::progress("");
  if (!stopped) agree(group, downloader.failed_list());
  return {!stopped, reduce(group, downloader.progress().counts()), downloader.progress().seconds()};
}

}  // namespace millrace
