#include "millrace/produce/producer.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <utility>

#include "encoding_thread.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/rejected_list.h"
#include "millrace/parcels/parcel_bytes.h"

namespace millrace {
namespace {

constexpr std::size_t ledger_bytes = 64 << 10;
constexpr std::chrono::milliseconds poll_interval(1);  // messages on their way are looked after this often

// One stripe's encoded samples on their way into a parcel.
struct OutgoingStripe {
  std::uint32_t stripe = 0;
  std::vector<EncodedBatch> pieces;
  int waiting = 0;  // samples in `pieces`
  LedgerDelta non_finite;
};

class Producer {
 public:
  Producer(StripeStream& stream, CachedEncoder& encoder, ParcelSender& sender, const DataPlan& data,
           const ProducerPlan& plan)
      : stream_(stream),
        encoder_(encoder),
        sender_(sender),
        data_(data),
        plan_(plan),
        order_(plan.stripes, plan.parcel),
        next_(order_.next()) {
    for (auto stripe : plan.stripes) outgoing_[stripe].stripe = stripe;
  }

  void run() {
    run_until_stopped();
    encoder_.finish();
  }

 private:
  // While the next batch is encoded, this thread sends the last one.
  void run_until_stopped() {
    EncodingThread encoding(stream_, encoder_, plan_.stripes, plan_.parcel);
    while (!sender_.all_stopped()) {
      tell_signal();
      if (auto encoded = next_of(encoding)) take_over(std::move(*encoded));
      sender_.poll();
    }
  }

  std::optional<EncoderOutput> next_of(EncodingThread& encoding) try {
    return encoding.next(poll_interval);
  } catch (const Error& error) {
    if (error.exit() == Exit::bad_data) {
      tell_dropped(encoding.untold());
      tell_what_was_read();
    }
    throw;
  }

  void tell_signal() {
    if (stop::requested() && !std::exchange(signal_told_, true)) sender_.report_signal(stop::signal_number());
  }

  void take_over(EncoderOutput encoded) {
    since_taken_over_ = Stopwatch();
    spent_ = encoded.spent;
    since_spent_ = encoded.since;
    tell_dropped(encoded.dropped);
    sort_by_stripe(encoded.batch);
    send_complete_parcels();
    busy_seconds_ += since_taken_over_.seconds();
  }

  void tell_dropped(const std::vector<SampleRef>& dropped) {
    for (const auto& ref : dropped) {
      if (is_power_of_ten(++non_finite_))  // each pass meets them again; ledger.json counts them once
        log::warning("{}: its encoding is not finite; the sample is left out ({} so far)", ref.id, non_finite_);
      outgoing_[ref.stripe].non_finite.add_non_finite(ref.archive, ref.hash);
      if (plan_.rejected) plan_.rejected->add({ref, RejectReason::non_finite, "its encoding is not finite"});
    }
  }

  // For ledger.json: the rows since the last sample of each stripe, in parcels without samples.
  void tell_what_was_read() {
    constexpr double limit_seconds = 10;
    const Stopwatch watch;
    const auto too_long = [&] { return watch.seconds() > limit_seconds; };
    for (auto& [stripe, outgoing] : outgoing_) {
      for (auto delta = take_delta(outgoing); !delta.empty(); delta = take_delta(outgoing)) {
        const auto bytes =
            pack_parcel({stripe, make_empty_batch(0, {.moments = {0, 0, 0}, .text = {0}}), delta.to_bytes(), report()});
        if (!sender_.send(plan_.trainer_of.at(stripe), bytes, too_long)) return;
      }
    }
  }

  void sort_by_stripe(const EncodedBatch& batch) {
    std::map<std::uint32_t, std::vector<int>> rows_of;
    for (std::size_t row = 0; row < batch.refs.size(); ++row)
      rows_of[batch.refs[row].stripe].push_back(static_cast<int>(row));
    for (const auto& [stripe, rows] : rows_of) {
      outgoing_[stripe].pieces.push_back(select_rows(batch, rows));
      outgoing_[stripe].waiting += static_cast<int>(rows.size());
    }
  }

  // NOTE [Order of parcels] Parcels leave in the order in which they are needed, whoever they are for and whenever they
  // were complete. That keeps the hand-off from deadlock, with rings of any size, encoder batches of any size and any
  // number of producers and trainers, however these share the stripes. For let nothing move any more, and let t be the
  // trainer that waits for samples in the least step j; it lacks a parcel X of producer p, needed in step j or before.
  //   If X has left, it lies in t's ring, and t takes it: a trainer empties the ring of a producer it lacks something
  //   of. If X has not left, p stands at a parcel Y, in the order before X or X itself, needed in a step i <= j,
  //   because the ring of Y's trainer u is full. Either u waits for samples, in step k >= j: then it lacks Y, and takes
  //   what is in its ring. Or u waits for others in the gradients of step k: then it has had all that it needs up to k,
  //   so i > k; but t, in step j >= i > k, has left the gradients of step k, and so has u.
  // Each case contradicts that nothing moves. With the parcels of an encoder batch sent by stripe number, more parcels
  // of a later step than a ring has slots could block one that another trainer waited for.
  // tests/app/handoff_model_test.cpp tries thousands of layouts.
  void send_complete_parcels() {
    while (outgoing_[next_.stripe].waiting >= next_.samples) {
      OutgoingStripe& outgoing = outgoing_[next_.stripe];
      send_parcel(outgoing, take(outgoing, next_.samples));
      next_ = order_.next();
    }
  }

  EncodedBatch take(OutgoingStripe& outgoing, int samples) {
    EncodedBatch all = concatenate(std::exchange(outgoing.pieces, {}));
    std::vector<int> rows(all.refs.size());
    std::iota(rows.begin(), rows.end(), 0);
    outgoing.waiting -= samples;
    if (outgoing.waiting == 0) return all;
    outgoing.pieces.push_back(select_rows(all, {rows.begin() + samples, rows.end()}));
    return select_rows(all, {rows.begin(), rows.begin() + samples});
  }

  // What is new of a stripe's rows, as much as a parcel takes.
  LedgerDelta take_delta(OutgoingStripe& outgoing) {
    auto delta = stream_.take_ledger_delta(outgoing.stripe, ledger_bytes / 2);
    delta.append(outgoing.non_finite.take(ledger_bytes / 2));
    return delta;
  }

  void send_parcel(OutgoingStripe& outgoing, EncodedBatch batch) {
    const auto delta = take_delta(outgoing);
    encoder_.reject(fresh_rejections(delta, data_.stripes));
    const auto bytes = pack_parcel({outgoing.stripe, std::move(batch), delta.to_bytes(), report()});
    const int trainer = plan_.trainer_of.at(outgoing.stripe);
    sender_.send(trainer, bytes, [&] {
      tell_signal();
      return false;
    });
  }

  // Of the batches that were taken over so far, and of sending until now: while one is being sent.
  ProducerReport report() const {
    ProducerReport report = spent_;
    report.seconds += since_spent_.seconds();
    report.send_wait_seconds = sender_.stall_seconds();
    report.send_seconds = busy_seconds_ + since_taken_over_.seconds() - report.send_wait_seconds;
    return report;
  }

  StripeStream& stream_;
  CachedEncoder& encoder_;
  ParcelSender& sender_;
  const DataPlan& data_;
  const ProducerPlan& plan_;
  TurnOrder order_;
  Turn next_;  // to be sent
  std::map<std::uint32_t, OutgoingStripe> outgoing_;
  ProducerReport spent_;  // up to the batch that is being sent
  Stopwatch since_spent_;
  double busy_seconds_ = 0;  // sending and waiting to send, but for the present batch
  Stopwatch since_taken_over_;
  bool signal_told_ = false;
  std::uint64_t non_finite_ = 0;  // samples that were left out, at every visit
};

}  // namespace

TurnSize plan_parcel_size(int samples_per_step) {
  constexpr int images = 64, steps = 8;
  return {samples_per_step, std::clamp(images / samples_per_step, 1, steps)};
}

std::size_t plan_parcel_bytes(int parcel_samples, const EncodingShape& shape) {
  return parcel_capacity_bytes(parcel_samples, shape, max_id_bytes, ledger_bytes);
}

void check_parcel_bytes(std::size_t bytes, int parcel_samples) {
  if (bytes <= max_parcel_bytes) return;
  throw Error(Exit::usage,
              fmt::format("batch.global: the {} samples of one stripe in a step are {}; at most {} travel at once",
                          parcel_samples, format_bytes(bytes), format_bytes(max_parcel_bytes)),
              "lower batch.global, or raise data.stripes, for which more archives may be needed");
}

void run_producer(StripeStream& stream, CachedEncoder& encoder, ParcelSender& sender, const DataPlan& data,
                  const ProducerPlan& plan) {
  Producer(stream, encoder, sender, data, plan).run();
  sender.finish();
}

}  // namespace millrace
