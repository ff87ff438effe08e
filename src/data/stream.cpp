#include "millrace/data/stream.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "barren.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stopwatch.h"

namespace millrace {

namespace {

// Every stripe keeps an archive open; the usual soft limit of 1024 files is soon reached.
void allow_open_files(std::size_t stripes) {
  constexpr rlim_t others = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= stripes + others) return;
  const rlim_t wanted = stripes + others;
  limit.rlim_cur = limit.rlim_max == RLIM_INFINITY ? wanted : std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);  // where it is refused, opening an archive will say so
}

std::size_t bytes_of(const RawRow& row) {
  if (const auto* sample = std::get_if<RawSample>(&row)) return sample->image.size();
  if (const auto* encoded = std::get_if<EncodedSample>(&row))
    return 2 * (encoded->encoding.moments.size() + encoded->encoding.text.size());
  return 0;
}

// A row on its way through the pool.
struct Slot {
  StripeRow row;
  bool done = false;
  std::variant<TransformedSample, Rejected> outcome;
};

// A shuffled block, and the news about all rows it was chosen from.
struct Block {
  std::deque<TransformedSample> samples;
  LedgerDelta news;
};

struct Stripe {
  Stripe(const Deal& deal, const SampleSource& source, std::uint32_t number, std::uint32_t block,
         const StripeCursor& from)
      : number(number), reader(deal, source, number, from), builder(deal.seed(), block, from), barren(deal, number) {}

  const std::uint32_t number;
  StripeReader reader;  // used by one worker at a time, outside the lock
  BlockBuilder<TransformedSample> builder;
  BarrenWatch barren;
  std::deque<std::unique_ptr<Slot>> slots;  // rows in order, until they are in a block
  std::deque<Block> blocks;                 // ready to be given out
  std::size_t ready = 0;                    // samples in them
  LedgerDelta collected;                    // about the rows behind the last complete block
  LedgerDelta news;                         // about the rows up to what next() has returned
  bool scheduled = false;                   // a worker reads it, or soon will
  bool read_to_end = false;                 // no more rows will come
  bool removed = false;
  std::exception_ptr failure;  // comes after the samples that are ready

  std::size_t held() const { return slots.size() + builder.held() + ready; }
  bool finished() const { return read_to_end && slots.empty() && ready == 0; }
};

}  // namespace

// Workers take jobs under one lock: turn a row into a sample, or read more rows of a stripe that has room.
struct StripeStream::Impl {
  Impl(const Deal& deal, const SampleSource& source, const Preparation& preparation, const StreamOptions& options)
      : deal(deal), source(source), preparation(preparation), options(options) {
    if (preparation.filter) this->preparation.filter_watch = &filter_watch.emplace(*preparation.filter);
    ensure(options.threads >= 1 && options.block >= 1 && options.ahead >= 1,
           "a stream needs threads, a block and room ahead");
    for (int i = 0; i < options.threads; ++i) workers.emplace_back([this](std::stop_token stop) { work(stop); });
  }

  ~Impl() {
    for (std::jthread& worker : workers) worker.request_stop();
    workers.clear();  // joins, before what they use goes away
  }

  using StripePtr = std::shared_ptr<Stripe>;
  struct PrepareJob {
    StripePtr stripe;
    Slot* slot;
  };

  void work(std::stop_token stop) {
    std::unique_lock lock(mutex);
    while (true) {
      if (!work_there.wait(lock, stop, [&] { return !to_prepare.empty() || !to_read.empty(); })) return;
      if (stop.stop_requested()) return;
      if (!to_prepare.empty()) {
        PrepareJob job = std::move(to_prepare.front());
        to_prepare.pop_front();
        prepare(lock, job);
      } else {
        StripePtr stripe = std::move(to_read.front());
        to_read.pop_front();
        read(lock, stripe);
      }
    }
  }

  void prepare(std::unique_lock<std::mutex>& lock, PrepareJob& job) {
    lock.unlock();
    PrepareSeconds spent;
    std::exception_ptr failure;
    try {
      job.slot->outcome = prepare_sample(std::move(std::get<RawSample>(job.slot->row.row)), preparation, spent);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    statistics.busy.add(spent);
    if (failure) stop_with(*job.stripe, failure);
    job.slot->done = true;
    collect(job.stripe);
  }

  void read(std::unique_lock<std::mutex>& lock, const StripePtr& stripe) {
    const std::size_t rows = std::min<std::size_t>(capacity() - stripe->held(), rows_per_read);
    lock.unlock();
    const Stopwatch watch;
    std::vector<std::unique_ptr<Slot>> slots;
    std::exception_ptr failure;
    std::size_t bytes = 0;
    bool ended = false;
    try {
      while (slots.size() < rows && bytes < bytes_per_read && !ended) {
        auto slot = std::make_unique<Slot>();
        slot->row = stripe->reader.next();
        ended = options.epochs && slot->row.epoch_ended && slot->row.at.epoch + 1 >= options.epochs;
        bytes += bytes_of(slot->row.row);
        slots.push_back(std::move(slot));
      }
    } catch (...) {
      failure = std::current_exception();
    }
    const double seconds = watch.seconds();
    lock.lock();
    statistics.busy.read += seconds;
    statistics.image_bytes += bytes;
    for (auto& slot : slots) enqueue(stripe, std::move(slot));
    stripe->scheduled = false;
    stripe->read_to_end |= ended;
    if (failure) stop_with(*stripe, failure);
    collect(stripe);
  }

  void enqueue(const StripePtr& stripe, std::unique_ptr<Slot> slot) {
    statistics.rows += !slot->row.epoch_ended;
    if (auto* rejected = std::get_if<Rejected>(&slot->row.row)) {
      slot->outcome = std::move(*rejected);
      slot->done = true;
    } else if (auto* encoded = std::get_if<EncodedSample>(&slot->row.row)) {
      TransformedSample sample;
      sample.ref = std::move(encoded->ref);
      sample.encoding = std::move(encoded->encoding);
      slot->outcome = std::move(sample);
      slot->done = true;
    } else if (slot->row.epoch_ended) {
      slot->done = true;
    } else if (!stripe->removed) {
      to_prepare.push_back({stripe, slot.get()});
      work_there.notify_one();
    }
    stripe->slots.push_back(std::move(slot));
  }

  // Moves what is done, in the order of the rows, into blocks; asks for more rows where there is room.
  void collect(const StripePtr& stripe) {
    try {
      while (!stripe->failure && !stripe->slots.empty() && stripe->slots.front()->done) {
        const std::unique_ptr<Slot> slot = std::move(stripe->slots.front());
        stripe->slots.pop_front();
        collect_row(*stripe, *slot);
      }
    } catch (...) {
      stop_with(*stripe, std::current_exception());
      if (filter_watch) filter_watch->warn_now();
    }
    ready_there.notify_all();
    schedule(stripe);
  }

  void collect_row(Stripe& stripe, Slot& slot) {
    const StripeRow& row = slot.row;
    if (row.epoch_ended) {
      deliver(stripe, stripe.builder.end_epoch(row.at.epoch));
      if (!stripe.read_to_end) stripe.barren.end_epoch(row.at.epoch);
      return;
    }
    const auto* const rejected = std::get_if<Rejected>(&slot.outcome);
    const auto reason = rejected ? std::optional(rejected->reason) : std::nullopt;
    if (reason == Reason::archive_error) log::warning("{}: {}", rejected->ref.id, rejected->detail);
    stripe.barren.count(reason);
    if (row.at.epoch == 0) {  // later epochs see the same rows
      stripe.collected.add(row.unit, row.at.row, reason, rejected && rejected->cached);
      if (rejected && options.rejected) options.rejected->add(*rejected);
    }
    if (rejected) return;
    ++statistics.accepted;
    deliver(stripe, stripe.builder.add(std::move(std::get<TransformedSample>(slot.outcome)), row.at));
  }

  void deliver(Stripe& stripe, std::vector<TransformedSample> samples) {
    if (samples.empty()) return;
    stripe.ready += samples.size();
    Block block;
    block.samples.assign(std::make_move_iterator(samples.begin()), std::make_move_iterator(samples.end()));
    block.news = std::exchange(stripe.collected, {});
    stripe.blocks.push_back(std::move(block));
  }

  void schedule(const StripePtr& stripe) {
    if (stripe->scheduled || stripe->read_to_end || stripe->removed || stripe->failure) return;
    if (stripe->held() >= capacity()) return;
    stripe->scheduled = true;
    to_read.push_back(stripe);
    work_there.notify_one();
  }

  void stop_with(Stripe& stripe, std::exception_ptr failure) {
    if (!stripe.failure) stripe.failure = failure;
  }

  StripePtr find(std::uint32_t number) const {
    const auto found = stripes.find(number);
    ensure(found != stripes.end(), "the stream does not own this stripe");
    return found->second;
  }

  TransformedSample take(const StripePtr& stripe) {
    Block& block = stripe->blocks.front();
    stripe->news.append(std::exchange(block.news, {}));
    TransformedSample sample = std::move(block.samples.front());
    block.samples.pop_front();
    if (block.samples.empty()) stripe->blocks.pop_front();
    --stripe->ready;
    schedule(stripe);
    return sample;
  }

  std::size_t capacity() const { return std::size_t{options.block} + options.ahead; }

  static constexpr std::size_t rows_per_read = 16;
  static constexpr std::size_t bytes_per_read = 4 << 20;

  const Deal& deal;
  const SampleSource& source;
  Preparation preparation;
  std::optional<FilterWatch> filter_watch;
  const StreamOptions options;
  const Stopwatch since_start;

  std::mutex mutex;
  std::condition_variable_any work_there;
  std::condition_variable ready_there;
  std::unordered_map<std::uint32_t, StripePtr> stripes;
  std::deque<PrepareJob> to_prepare;
  std::deque<StripePtr> to_read;
  StreamStatistics statistics;
  std::vector<std::jthread> workers;
};

StripeStream::StripeStream(const Deal& deal, const SampleSource& source, const Preparation& preparation,
                           const StreamOptions& options)
    : impl_(std::make_unique<Impl>(deal, source, preparation, options)) {}

StripeStream::~StripeStream() = default;

void StripeStream::add(std::uint32_t stripe, const StripeCursor& from) {
  std::lock_guard lock(impl_->mutex);
  ensure(!impl_->stripes.contains(stripe), "the stream already owns this stripe");
  allow_open_files(impl_->stripes.size() + 1);
  auto added = std::make_shared<Stripe>(impl_->deal, impl_->source, stripe, impl_->options.block, from);
  impl_->stripes[stripe] = added;
  impl_->schedule(added);
}

void StripeStream::remove(std::uint32_t stripe) {
  std::lock_guard lock(impl_->mutex);
  const auto removed = impl_->find(stripe);
  removed->removed = true;
  std::erase_if(impl_->to_prepare, [&](const auto& job) { return job.stripe == removed; });
  std::erase(impl_->to_read, removed);
  impl_->stripes.erase(stripe);
}

std::optional<TransformedSample> StripeStream::next(std::uint32_t number) {
  std::unique_lock lock(impl_->mutex);
  const auto stripe = impl_->find(number);
  if (stripe->ready == 0) {
    const Stopwatch watch;
    impl_->ready_there.wait(lock, [&] { return stripe->ready > 0 || stripe->failure || stripe->finished(); });
    impl_->statistics.wait_seconds += watch.seconds();
  }
  if (stripe->ready > 0) return impl_->take(stripe);
  if (stripe->failure) std::rethrow_exception(stripe->failure);
  stripe->news.append(std::exchange(stripe->collected, {}));
  return std::nullopt;
}

LedgerDelta StripeStream::take_ledger_delta(std::uint32_t stripe, std::size_t max_bytes) {
  std::lock_guard lock(impl_->mutex);
  return impl_->find(stripe)->news.take(max_bytes);
}

StreamStatistics StripeStream::statistics() const {
  std::lock_guard lock(impl_->mutex);
  StreamStatistics statistics = impl_->statistics;
  statistics.threads = impl_->options.threads;
  statistics.seconds = impl_->since_start.seconds();
  return statistics;
}

}  // namespace millrace
