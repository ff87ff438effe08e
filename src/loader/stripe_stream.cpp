#include "millrace/loader/stripe_stream.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "empty_stripe_guard.h"
#include "first_sample_guard.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/open_files.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/dataset/retrying_source.h"
#include "millrace/latents/cached_source.h"

namespace millrace {

namespace {

std::size_t bytes_of(const RawRow& row) {
  if (const auto* sample = std::get_if<RawSample>(&row)) return sample->image.size();
  if (const auto* encoded = std::get_if<EncodedSample>(&row)) return encoded->encoding.bytes();
  return 0;
}

struct EpochEnd {};

// A row on its way to next(), or what stands between the rows of two epochs.
struct PendingRow {
  // A RawSample waits for a thread; what stopped a thread comes out of next() when it is the row's turn.
  using State = std::variant<RawSample, TransformedSample, Rejected, EpochEnd, std::exception_ptr>;

  StripeCursor at;  // of the row itself
  std::uint32_t split = 0;
  State state;
  StripeCursor after = {};
  LedgerDelta skipped = {};  // rows before it that the filters dropped

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(state);
  }
};
using RowPtr = std::unique_ptr<PendingRow>;

struct Stripe {
  Stripe(const EpochOrder& order, const SampleSource& source, std::uint32_t number, const StripeCursor& from)
      : number(number), reader(order, source, number, from), start(from), empty_guard(order, number) {}

  const std::uint32_t number;
  StripeReader reader;  // used by one worker at a time, outside the lock
  StripeCursor start;   // of the block that is being read
  std::vector<RowPtr> block;
  LedgerDelta skipped;         // since the last row that was not
  std::deque<RowPtr> rows;     // of whole blocks, in the order of giving out
  std::size_t dispatched = 0;  // so many of them, from the front, need no thread any more
  std::size_t expected = 0;    // samples that next() will be asked for
  std::size_t in_flight = 0;   // samples that are ready or being prepared
  EmptyStripeGuard empty_guard;
  LedgerDelta delta;       // about the rows up to what next() has returned
  bool scheduled = false;  // a worker reads it, or soon will
  bool read_to_end = false;

  std::size_t held() const { return block.size() + rows.size(); }
};

}  // namespace

// Workers take jobs under one lock: turn a row into a sample, or read more rows of a stripe that has room.
struct StripeStream::Impl {
  Impl(const EpochOrder& order, const SampleSource& source, const TransformPipeline& transforms,
       const StreamOptions& options)
      : order(order),
        retry(options.retry_for),
        source(source, retry),
        transforms(transforms),
        options(options),
        first_sample_guard(order.plan(), options.max_bad_share) {
    this->transforms.retry = &retry;
    this->transforms.last_files = &last_files;
    if (transforms.filter) this->transforms.filter_watch = &filter_watch.emplace(*transforms.filter);
    ensure(options.threads >= 1 && options.block >= 1, "a stream needs threads and a block");
    for (int i = 0; i < options.threads; ++i) workers.emplace_back([this](std::stop_token stop) { work(stop); });
  }

  ~Impl() {
    for (std::jthread& worker : workers) worker.request_stop();
    retry.end();
    workers.clear();  // joins, before what they use goes away
  }

  using StripePtr = std::shared_ptr<Stripe>;
  struct TransformJob {
    StripePtr stripe;
    PendingRow* pending;
  };

  void work(std::stop_token stop) {
    std::unique_lock lock(mutex);
    while (true) {
      if (!work_there.wait(lock, stop, [&] { return !to_transform.empty() || !to_read.empty(); })) return;
      if (stop.stop_requested()) return;
      if (!to_read.empty()) {  // first, so that the others have something to do meanwhile
        const StripePtr stripe = std::move(to_read.front());
        to_read.pop_front();
        read(lock, stripe);
      } else {
        const TransformJob job = std::move(to_transform.front());
        to_transform.pop_front();
        transform(lock, job);
      }
      ready_there.notify_one();
    }
  }

  void transform(std::unique_lock<std::mutex>& lock, const TransformJob& job) {
    lock.unlock();
    TransformSeconds spent;
    PendingRow::State state;
    try {
      // Of the sample only the bytes go: others may ask meanwhile whether the row is waiting.
      std::visit([&](auto&& result) { state = std::forward<decltype(result)>(result); },
                 transform_sample(std::move(std::get<RawSample>(job.pending->state)), transforms, spent));
    } catch (...) {
      state = std::current_exception();
    }
    const auto* const rejected = std::get_if<Rejected>(&state);
    if (rejected) report_rejected(*rejected);
    lock.lock();
    statistics.busy.add(spent);
    if (rejected) {
      --job.stripe->in_flight;
      first_sample_guard.reject_undecided(*rejected);
    } else if (std::holds_alternative<TransformedSample>(state)) {
      ++statistics.accepted;
      first_sample_guard.found_sample();
    }
    job.pending->state = std::move(state);
    schedule(job.stripe);
  }

  void read(std::unique_lock<std::mutex>& lock, const StripePtr& stripe) {
    const std::size_t most = std::min(room(*stripe), rows_per_read);
    lock.unlock();
    const Stopwatch watch;
    std::vector<RowPtr> rows;
    std::size_t bytes = 0;
    bool ended = false;
    try {
      while (rows.size() < most && bytes < bytes_per_read && !ended) {
        auto [at, split, row] = stripe->reader.next();
        bytes += row ? bytes_of(*row) : 0;
        ended = !row && options.epochs && at.epoch + 1 >= options.epochs;
        rows.push_back(
            std::make_unique<PendingRow>(PendingRow{at, split, row ? classify(std::move(*row)) : EpochEnd()}));
      }
    } catch (...) {
      rows.push_back(std::make_unique<PendingRow>());
      rows.back()->state = std::current_exception();
      ended = true;
    }
    const double seconds = watch.seconds();
    lock.lock();
    statistics.busy.read += seconds;
    for (RowPtr& pending : rows) place_row(*stripe, std::move(pending));
    stripe->scheduled = false;
    stripe->read_to_end = ended;
    schedule(stripe);
  }

  // What can be said of a row before a thread transforms it.
  PendingRow::State classify(RawRow row) const {
    if (auto* encoded = std::get_if<EncodedSample>(&row)) {
      TransformedSample sample;
      sample.ref = std::move(encoded->ref);
      sample.encoding = std::move(encoded->encoding);
      return sample;
    }
    if (auto* raw = std::get_if<RawSample>(&row)) {
      auto refusal = judge_metadata(*raw, transforms);
      // As it will be when it is decoded, which is later: until then it would wait in the block.
      if (!refusal && raw->image.size() > transforms.images.max_bytes)
        refusal = {RejectReason::too_large, fmt::format("{} bytes", raw->image.size())};
      if (!refusal) return std::move(*raw);
      row = Rejected{std::move(raw->ref), refusal->first, std::move(refusal->second)};
    } else {
      judge_rejected(std::get<Rejected>(row), transforms);
    }
    report_rejected(std::get<Rejected>(row));
    return std::move(std::get<Rejected>(row));
  }

  // Puts what was read where it belongs: into the block, or out of the way.
  void place_row(Stripe& stripe, RowPtr pending) {
    const auto& at = pending->at;
    if (pending->is<std::exception_ptr>()) {  // the rest of the block will never be known
      stripe.rows.push_back(std::move(pending));
      return;
    }
    if (pending->is<EpochEnd>()) {
      close_block(stripe, {at.epoch + 1, 0, 0, 0});
      pending->skipped = std::exchange(stripe.skipped, {});
      stripe.rows.push_back(std::move(pending));
      return;
    }
    ++statistics.rows;
    if (pending->is<TransformedSample>()) first_sample_guard.found_sample();
    if (pending->is<RawSample>()) first_sample_guard.count_undecided(order.plan().splits[pending->split].archive);
    if (const auto* rejected = std::get_if<Rejected>(&pending->state)) {
      first_sample_guard.count_rejected(*rejected);
      if (is_of_filters(rejected->reason)) {
        stripe.skipped.add(pending->split, at.row, rejected->reason, rejected->cached);
        return;
      }
    }
    const StripeCursor next{at.epoch, at.split, at.row + 1, 0};
    stripe.block.push_back(std::move(pending));
    if (stripe.block.size() == options.block) close_block(stripe, next);
  }

  void close_block(Stripe& stripe, const StripeCursor& next) {
    auto block = std::exchange(stripe.block, {});
    const auto size = static_cast<std::uint32_t>(block.size());
    for (const auto& [row, after] : plan_block(order.seed(), stripe.number, size, stripe.start, next)) {
      block[row]->after = after;
      block[row]->skipped = std::exchange(stripe.skipped, {});
      statistics.accepted += block[row]->is<TransformedSample>();
      stripe.rows.push_back(std::move(block[row]));
    }
    stripe.start = next;
  }

  // Called without the lock: it reads and writes files.
  void report_rejected(const Rejected& rejected) const {
    if (rejected.reason == RejectReason::archive_error && !rejected.cached && is_first_error_of(rejected.ref.archive))
      log::warning("{}: {}", rejected.ref.id, rejected.detail);
    if (options.rejected) options.rejected->add(rejected);
  }

  // Every split of a broken archive finds it broken, in every pass.
  bool is_first_error_of(std::uint32_t archive) const {
    const std::lock_guard lock(broken_mutex);
    return broken_archives.insert(archive).second;
  }

  // Has transformed and read what the stripe is expected to give.
  void schedule(const StripePtr& stripe) {
    for (; stripe->in_flight < stripe->expected && stripe->dispatched < stripe->rows.size(); ++stripe->dispatched) {
      PendingRow& pending = *stripe->rows[stripe->dispatched];
      if (pending.is<RawSample>()) {
        to_transform.push_back({stripe, &pending});
        work_there.notify_one();
      }
      stripe->in_flight += pending.is<RawSample>() || pending.is<TransformedSample>();
    }
    if (stripe->scheduled || stripe->read_to_end || room(*stripe) == 0) return;
    stripe->scheduled = true;
    to_read.push_back(stripe);
    work_there.notify_one();
  }

  // Rows that may be read now: a block on its way out, and as many of the next one as are expected meanwhile.
  std::size_t room(const Stripe& stripe) const {
    const std::size_t most = stripe.expected ? options.block + stripe.expected : 0;
    return most - std::min(most, stripe.held());
  }

  // Accounts for the rows before the next sample. Whether next() has to wait no longer: for that sample, for what
  // stopped a thread, or because all is read.
  bool pass_over_rejected(Stripe& stripe) {
    while (!stripe.rows.empty() && !stripe.rows.front()->is<RawSample>()) {
      const PendingRow& pending = *stripe.rows.front();
      if (!pending.is<EpochEnd>() && !pending.is<Rejected>()) return true;
      const RowPtr passed = take_row(stripe);
      const FilterWatch* const filters = filter_watch ? &*filter_watch : nullptr;
      first_sample_guard.judge(filters, options.section);
      if (passed->is<EpochEnd>() && !stripe.read_to_end)
        stripe.empty_guard.end_epoch(passed->at.epoch, filters, options.section);
    }
    return stripe.rows.empty() && stripe.read_to_end;
  }

  // The next sample if it is ready.
  std::optional<TransformedSample> take(Stripe& stripe) {
    if (!pass_over_rejected(stripe) || stripe.rows.empty()) return std::nullopt;
    const RowPtr pending = take_row(stripe);
    if (const auto* failure = std::get_if<std::exception_ptr>(&pending->state)) std::rethrow_exception(*failure);
    auto sample = std::move(std::get<TransformedSample>(pending->state));
    sample.ref.after = pending->after;
    --stripe.in_flight;
    return sample;
  }

  RowPtr take_row(Stripe& stripe) {
    RowPtr pending = std::move(stripe.rows.front());
    stripe.rows.pop_front();
    if (stripe.dispatched) --stripe.dispatched;
    for (const RowRun& run : pending->skipped.runs()) stripe.empty_guard.count(run.reason, run.rows);
    stripe.delta.append(pending->skipped);
    if (pending->is<EpochEnd>() || pending->is<std::exception_ptr>()) return pending;
    const auto* const rejected = std::get_if<Rejected>(&pending->state);
    const auto reason = rejected ? std::optional(rejected->reason) : std::nullopt;
    stripe.empty_guard.count(reason, 1);
    stripe.delta.add(pending->split, pending->at.row, reason, rejected && rejected->cached);
    return pending;
  }

  StripePtr find(std::uint32_t number) const {
    const auto found = stripes.find(number);
    ensure(found != stripes.end(), "the stream does not own this stripe");
    return found->second;
  }

  static constexpr std::size_t rows_per_read = 16;
  static constexpr std::size_t bytes_per_read = 4 << 20;

  const EpochOrder& order;
  StorageRetry retry;
  LastFiles last_files;  // that a list has named
  const RetryingSource source;
  TransformPipeline transforms;
  std::optional<FilterWatch> filter_watch;
  const StreamOptions options;
  const Stopwatch since_start;

  mutable std::mutex broken_mutex;
  mutable std::set<std::uint32_t> broken_archives;  // that were warned about
  std::mutex mutex;
  std::condition_variable_any work_there;
  std::condition_variable ready_there;
  std::unordered_map<std::uint32_t, StripePtr> stripes;
  std::deque<TransformJob> to_transform;
  std::deque<StripePtr> to_read;
  FirstSampleGuard first_sample_guard;
  StreamStatistics statistics;
  std::vector<std::jthread> workers;
};

StripeStream::StripeStream(const EpochOrder& order, const SampleSource& source, const TransformPipeline& transforms,
                           const StreamOptions& options)
    : impl_(std::make_unique<Impl>(order, source, transforms, options)) {}

StripeStream::StripeStream(StripeStream&&) noexcept = default;
StripeStream::~StripeStream() = default;

void StripeStream::add(std::uint32_t stripe, const StripeCursor& from) {
  std::lock_guard lock(impl_->mutex);
  ensure(!impl_->stripes.contains(stripe), "the stream already owns this stripe");
  // Every stripe keeps an archive open, of which a transfer has sockets, and latent files.
  allow_open_files((4 + cached_files_of_a_reader) * (impl_->stripes.size() + 1));
  impl_->stripes[stripe] = std::make_shared<Stripe>(impl_->order, impl_->source, stripe, from);
  if (from != StripeCursor{}) impl_->first_sample_guard.found_sample();  // before: cursors move with samples
}

void StripeStream::expect(std::uint32_t stripe) {
  std::lock_guard lock(impl_->mutex);
  const auto own = impl_->find(stripe);
  ++own->expected;
  impl_->schedule(own);
}

std::optional<TransformedSample> StripeStream::next(std::uint32_t stripe) {
  std::unique_lock lock(impl_->mutex);
  const auto own = impl_->find(stripe);
  if (own->expected == 0) own->expected = 1;
  impl_->schedule(own);
  std::optional<Stopwatch> waiting;
  auto sample = impl_->take(*own);
  while (!sample && !(own->read_to_end && own->rows.empty())) {
    if (!waiting) waiting.emplace();
    impl_->schedule(own);
    impl_->ready_there.wait(lock);
    sample = impl_->take(*own);
  }
  if (waiting) impl_->statistics.wait_seconds += waiting->seconds();
  --own->expected;
  impl_->schedule(own);
  return sample;
}

bool StripeStream::wait(std::uint32_t stripe, double seconds) {
  constexpr std::chrono::milliseconds look{50};  // a signal wakes nobody
  std::unique_lock lock(impl_->mutex);
  const auto own = impl_->find(stripe);
  if (own->expected == 0) own->expected = 1;
  impl_->schedule(own);
  const Stopwatch waiting;
  bool ready = impl_->pass_over_rejected(*own);
  while (!ready && waiting.seconds() < seconds && !stop::requested()) {
    impl_->schedule(own);
    impl_->ready_there.wait_for(lock, look);
    ready = impl_->pass_over_rejected(*own);
  }
  impl_->statistics.wait_seconds += waiting.seconds();
  return ready;
}

void StripeStream::end_retries() {
  impl_->retry.end();
}

LedgerDelta StripeStream::take_ledger_delta(std::uint32_t stripe, std::size_t max_bytes) {
  std::lock_guard lock(impl_->mutex);
  return impl_->find(stripe)->delta.take(max_bytes);
}

std::string StripeStream::filter_report() const {
  return impl_->filter_watch ? impl_->filter_watch->report() : "";
}

StreamStatistics StripeStream::statistics() const {
  std::lock_guard lock(impl_->mutex);
  StreamStatistics statistics = impl_->statistics;
  statistics.threads = impl_->options.threads;
  statistics.seconds = impl_->since_start.seconds();
  return statistics;
}

}  // namespace millrace
