#include "millrace/download/download.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "column_types.h"
#include "folder.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/open_files.h"
#include "millrace/core/queue.h"
#include "millrace/core/stopwatch.h"
#include "millrace/download/fetcher.h"
#include "result_watch.h"
#include "shard_files.h"
#include "shutdown_vote.h"
#include "url_lists.h"

namespace millrace {

namespace {

constexpr std::size_t max_open_shards = 64;
constexpr std::uint64_t row_bits = 20;  // of a ticket; rows_per_file is below 2^20

// Of one rank: transfers from a host are shared out to all of them.
FetchOptions options_of(const DownloadConfig& config, const Group& group) {
  auto options = config.fetch_options();
  options.per_host = std::max(1, options.per_host / group.size());
  return options;
}

// One rank's part. This thread moves bytes; others judge, decode and store what arrived, and the one that stores a
// shard's last row writes its files.
class Downloader {
 public:
  Downloader(const DownloadConfig& config, const Group& group, int threads, ListTypes types)
      : config_(config),
        group_(group),
        options_(options_of(config, group)),
        lists_(config, std::move(types)),
        watch_(options_),
        fetcher_(options_),
        arrived_(2 * static_cast<std::size_t>(options_.connections)) {
    constexpr std::size_t files = 3;  // of a transfer: its socket, and two while its host's address is looked up
    allow_open_files(files * static_cast<std::size_t>(options_.connections));
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Downloader() { drop(); }

  // To the end of the lists, or until a signal comes.
  void run(ShutdownVote& vote) {
    while (!vote.must_stop()) {
      rethrow();
      const Pause before = std::exchange(pause_, watch_.look(next_.has_value()));
      if (before == Pause::network && pause_ != before) fetcher_.forgive_hosts();
      open_shards();
      if (fetcher_.pending() == 0 && !next_) return finish();
      // A full queue would make this thread wait, and the transfers with it.
      const auto connections = static_cast<std::size_t>(options_.connections);
      const bool has_room = arrived_.size() < connections;
      const bool may_start = has_room && pause_ != Pause::question && pause_ != Pause::network;
      const Stopwatch round;
      for (Fetched& fetched : fetcher_.poll(std::chrono::milliseconds(may_start ? 200 : 20), may_start))
        hand_over(std::move(fetched));
      const bool is_held_up = has_room && pause_ == Pause::none && has_enough() && fetcher_.transfers() < connections;
      held_up_seconds_ = is_held_up ? held_up_seconds_ + awake_seconds(round.seconds()) : 0;
      if (group_.is_root()) progress_.show(state());
    }
    drop();
    rethrow();
  }

  const DownloadProgress& progress() const { return progress_; }
  // Why not all lists were read, or some finished archive stayed as it was.
  const std::optional<Error>& first_error() const { return first_error_; }

 private:
  struct NextShard {
    ListSlice slice;
    bool is_retry;
  };
  struct OpenShard {
    std::shared_ptr<Shard> shard;
    std::size_t left;  // rows still with the fetcher
    bool is_retry;
  };
  struct Arrival {
    std::shared_ptr<Shard> shard;
    std::size_t index;
    std::variant<std::string, Failure> result;
  };

  bool has_enough() const {
    return fetcher_.pending() >= 4 * static_cast<std::size_t>(options_.connections) || open_.size() >= max_open_shards;
  }

  // The next shards of this rank, until transfers have enough to choose from. Where they cannot be read the lists end:
  // what was begun is finished first. While transfers have enough, yet connections are idle, slow hosts hold them up.
  void open_shards() {
    const double patience = 4 * options_.timeout_seconds;
    try {
      while (!has_enough() && read_next() && pause_ == Pause::none) open(*std::exchange(next_, std::nullopt));
      if (has_enough() && held_up_seconds_ >= patience && read_next() && pause_ == Pause::none) {
        fetcher_.let_slow_hosts_go();
        held_up_seconds_ = 0;
      }
    } catch (...) {
      const Error error = present_error();
      lists_ended_ = true;
      next_.reset();
      log::warning("{}; what was begun before is finished first", error.what());
      remember(error);
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
      if (!lists_ended_) next_ = {std::move(slice), /*is_retry=*/finished};
    }
    return next_.has_value();
  }

  DownloadState state() const {
    const char* const pause = pause_ == Pause::network               ? "the network"
                              : pause_ == Pause::shut_hosts && next_ ? "hosts that do not answer"
                                                                     : "";
    return {group_.size(),      lists_.lists_begun(), lists_.files().size(),
            fetcher_.pending(), fetcher_.transfers(), pause};
  }

  void open(NextShard next) {
    const auto shard = std::make_shared<Shard>(std::move(next.slice), config_.out.value);
    std::vector<std::size_t> wanted;
    if (next.is_retry) {
      progress_.add_shard_before();
      try {
        wanted = load_for_retry(config_, *shard);
      } catch (const DamagedArchive& error) {
        leave(error);
      }
      if (wanted.empty()) return;
    } else {
      wanted.resize(shard->rows());
      std::iota(wanted.begin(), wanted.end(), 0);
    }
    shard->expect(wanted.size());
    for (const std::size_t index : wanted) {
      const ListRow& row = shard->row(index);
      fetcher_.add(shard->number() << row_bits | index, row.damage.empty() ? row.url : "");
    }
    open_.emplace(shard->number(), OpenShard{shard, wanted.size(), next.is_retry});
  }

  void hand_over(Fetched fetched) {
    const auto place = open_.find(fetched.ticket >> row_bits);
    OpenShard& open = place->second;
    const std::size_t index = fetched.ticket & ((1u << row_bits) - 1);
    watch_.note(open.shard->row(index).url, fetched, open.is_retry);
    arrived_.push({open.shard, index, std::move(fetched.result)});
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
    try {
      if (write_shard(config_, shard)) progress_.add_shard();
    } catch (const DamagedArchive& error) {
      leave(error);
    }
  }

  // The others go on, and this ends the run when they are finished.
  void leave(const DamagedArchive& error) {
    log::warning("{}; this archive stays as it is", error.what());
    remember(error);
  }

  void remember(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!first_error_) first_error_ = error;
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
  std::optional<NextShard> next_;  // read, not yet opened
  ResultWatch watch_;
  Pause pause_ = Pause::none;
  double held_up_seconds_ = 0;  // in which no rows were read, though connections were idle
  Fetcher fetcher_;
  std::unordered_map<std::uint64_t, OpenShard> open_;  // by number
  BoundedQueue<Arrival> arrived_;
  DownloadProgress progress_;
  std::atomic<bool> dropped_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::optional<Error> first_error_;
  std::vector<std::jthread> workers_;
};

}  // namespace

std::string find_unused_proxy() {
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) {
    const char* const value = std::getenv(name);
    if (value && *value) return name;
  }
  return {};
}

DownloadPlan plan_download(const DownloadConfig& config) {
  check_folder(config);
  DownloadPlan plan;
  UrlLists lists(config);
  plan.lists = lists.files().size();
  while (lists.skip()) plan.finished += is_finished(config, plan.shards++);
  return plan;
}

DownloadResult run_download(const DownloadConfig& config, const Group& group, int threads) {
  const auto types = broadcast_from_root(group, [&] {
    check_folder(config);
    const UrlLists lists(config);
    lists.check();
    if (const auto complaint = complaint_about_lists(lists.files())) log::warning("{}", *complaint);
    const ListTypes found = lists.find_types(known_types(config));
    open_folder(config, found);
    if (const std::string proxy = find_unused_proxy(); !proxy.empty()) {
      log::warning(
          "the proxy of {} is not used: images come straight from their hosts, so this machine has to reach them",
          proxy);
    }
    return types_to_json(found).dump();
  });
  Downloader downloader(config, group, threads, types_from_json(nlohmann::json::parse(types), "rank 0"));
  ShutdownVote vote(group);
  downloader.run(vote);
  Stopwatch since_word;
  const bool stopped = vote.wait([&](int left) {
    if (since_word.seconds() < 60) return;
    since_word.lap();
    log::info("the share of rank 0 is done; {} of {} ranks are still at theirs", left, group.size());
  });
  log::progress("");
  if (!stopped) agree(group, downloader.first_error());
  return {!stopped, reduce(group, downloader.progress().counts()), downloader.progress().seconds()};
}

}  // namespace millrace
