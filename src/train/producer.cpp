#include "millrace/train/producer.h"

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
#include "millrace/encode/parcel.h"

namespace millrace {
namespace {

constexpr std::size_t ledger_bytes = 64 << 10;
constexpr std::chrono::milliseconds poll_interval(1);  // messages on their way are looked after this often

// One stripe's encoded samples on their way into a parcel.
struct Line {
  std::uint32_t stripe = 0;
  std::vector<EncodedBatch> pieces;
  std::int64_t waiting = 0;  // samples in `pieces`
  LedgerDelta non_finite;
};

EncodedBatch join(std::vector<EncodedBatch> pieces) {
  EncodedBatch whole;
  std::vector<torch::Tensor> moments, text;
  for (auto& piece : pieces) {
    whole.refs.insert(whole.refs.end(), std::make_move_iterator(piece.refs.begin()),
                      std::make_move_iterator(piece.refs.end()));
    moments.push_back(piece.moments);
    text.push_back(piece.text);
  }
  whole.moments = torch::cat(moments).contiguous();
  whole.text = torch::cat(text).contiguous();
  return whole;
}

class Producer {
 public:
  Producer(StripeStream& stream, CachedEncoder& encoder, ParcelSender& sender, const DataPlan& data,
           const ProducerPlan& plan)
      : stream_(stream), encoder_(encoder), sender_(sender), data_(data), plan_(plan) {
    for (auto stripe : plan.stripes) lines_[stripe].stripe = stripe;
  }

  void run() {
    run_until_stopped();
    encoder_.finish();
  }

 private:
  // While the next batch is encoded, this thread sends the last one.
  void run_until_stopped() {
    EncodingThread encoding(stream_, encoder_, plan_.stripes, plan_.parcel_samples);
    while (!sender_.all_stopped()) {
      tell_signal();
      if (auto encoded = encoding.next(poll_interval)) take_over(std::move(*encoded));
      sender_.poll();
    }
  }

  void tell_signal() {
    if (stop::requested() && !std::exchange(signal_told_, true)) sender_.report_signal(stop::signal_number());
  }

  void take_over(Encoded encoded) {
    const Stopwatch watch;
    spent_ = encoded.spent;
    since_spent_ = encoded.since;
    sort_into_lines(encoded);
    for (auto& [stripe, line] : lines_)
      if (line.waiting >= plan_.parcel_samples) send(line);
    busy_seconds_ += watch.seconds();
  }

  void sort_into_lines(const Encoded& encoded) {
    const auto& refs = encoded.batch.refs;
    std::map<std::uint32_t, std::vector<int>> rows_of;
    for (std::size_t row = 0; row < refs.size(); ++row) {
      if (encoded.finite[row]) {
        rows_of[refs[row].stripe].push_back(static_cast<int>(row));
      } else {
        log::warning("{}: its encoding is not finite; the sample is left out", refs[row].id);
        lines_[refs[row].stripe].non_finite.add_non_finite(refs[row].archive, refs[row].hash);
        if (plan_.rejected) plan_.rejected->add({refs[row], Reason::non_finite, "its encoding is not finite"});
      }
    }
    for (const auto& [stripe, rows] : rows_of) {
      lines_[stripe].pieces.push_back(select_rows(encoded.batch, rows));
      lines_[stripe].waiting += static_cast<std::int64_t>(rows.size());
    }
  }

  void send(Line& line) {
    EncodedBatch all = join(std::move(line.pieces));
    line.pieces.clear();
    std::int64_t first = 0;
    for (; line.waiting - first >= plan_.parcel_samples; first += plan_.parcel_samples) {
      std::vector<int> rows(plan_.parcel_samples);
      std::iota(rows.begin(), rows.end(), static_cast<int>(first));
      send_parcel(line, select_rows(all, rows));
    }
    line.waiting -= first;
    if (line.waiting > 0) {
      std::vector<int> rest(line.waiting);
      std::iota(rest.begin(), rest.end(), static_cast<int>(first));
      line.pieces.push_back(select_rows(all, rest));
    }
  }

  void send_parcel(Line& line, EncodedBatch batch) {
    auto news = stream_.take_ledger_delta(line.stripe, ledger_bytes / 2);
    encoder_.reject(fresh_rejections(news, data_.stripes));
    news.append(line.non_finite.take(ledger_bytes / 2));
    const auto bytes = pack_parcel({line.stripe, std::move(batch), news.to_bytes(), report()});
    const int trainer = plan_.trainer_of[line.stripe];
    sender_.send(trainer, line.stripe, bytes, [&] {
      tell_signal();
      return false;
    });
  }

  // Of the batches that were taken over so far, and of sending until now.
  ProducerReport report() const {
    ProducerReport report = spent_;
    report.seconds += since_spent_.seconds();
    report.send_wait_seconds = sender_.stats().stall_seconds;
    report.send_seconds = std::max(0.0, busy_seconds_ - report.send_wait_seconds);
    return report;
  }

  StripeStream& stream_;
  CachedEncoder& encoder_;
  ParcelSender& sender_;
  const DataPlan& data_;
  const ProducerPlan& plan_;
  std::map<std::uint32_t, Line> lines_;
  ProducerReport spent_;  // up to the batch that is being sent
  Stopwatch since_spent_;
  double busy_seconds_ = 0;  // sending and waiting to send
  bool signal_told_ = false;
};

}  // namespace

int plan_parcel_samples(int samples_per_stripe_and_step) {
  constexpr int images = 64, steps = 8;
  const int n = samples_per_stripe_and_step;
  return std::max(n, std::min(images / n, steps) * n);
}

std::size_t plan_parcel_bytes(int parcel_samples, at::IntArrayRef moments_shape, at::IntArrayRef text_shape) {
  return parcel_capacity_bytes(parcel_samples, moments_shape, text_shape, longest_id_bytes, ledger_bytes);
}

void run_producer(StripeStream& stream, CachedEncoder& encoder, ParcelSender& sender, const DataPlan& data,
                  const ProducerPlan& plan) {
  try {
    Producer(stream, encoder, sender, data, plan).run();
  } catch (const Error& error) {
    sender.finish(error);
    throw;
  } catch (const std::exception& error) {
    sender.finish(Error(Exit::bug, error.what()));
    throw;
  }
  sender.finish();
}

}  // namespace millrace
