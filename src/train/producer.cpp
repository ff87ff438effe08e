#include "millrace/train/producer.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/encode/parcel.h"

namespace millrace {
namespace {

constexpr std::size_t ledger_bytes = 64 << 10;

// One stripe's encoded samples on their way into a parcel.
struct Line {
  std::uint32_t stripe = 0;
  std::uint64_t taken = 0;  // samples taken from the stream, those that were dropped again not counted
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
    while (!sender_.all_stopped()) {
      if (stop::requested()) sender_.report_signal(stop::signal_number());
      sort_into_lines(encoder_.encode(take_batch()));
      for (auto& [stripe, line] : lines_)
        if (line.waiting >= plan_.parcel_samples) send(line);
      sender_.poll();
    }
    encoder_.finish();
  }

 private:
  // An encoder batch of samples that need one, and the cached samples between them, up to as many again.
  std::vector<TransformedSample> take_batch() {
    std::vector<TransformedSample> samples;
    int to_encode = 0;
    while (to_encode < encoder_.batch_size() && static_cast<int>(samples.size()) < 2 * encoder_.batch_size()) {
      Line& line = furthest_behind();
      auto sample = stream_.next(line.stripe);
      ensure(sample.has_value(), "training reads stripes without end");
      ++line.taken;
      to_encode += !sample->encoding;
      samples.push_back(std::move(*sample));
    }
    return samples;
  }

  // By whole parcels, so that one stripe's parcel is finished before the next stripe's is begun.
  Line& furthest_behind() {
    auto parcels = [&](const auto& entry) { return entry.second.taken / plan_.parcel_samples; };
    return std::min_element(lines_.begin(), lines_.end(),
                            [&](const auto& a, const auto& b) { return parcels(a) < parcels(b); })
        ->second;
  }

  void sort_into_lines(const EncodedBatch& batch) {
    std::map<std::uint32_t, std::vector<int>> rows_of;
    std::vector<bool> finite(batch.refs.size(), false);
    for (int row : finite_rows(batch)) {
      finite[row] = true;
      rows_of[batch.refs[row].stripe].push_back(row);
    }
    for (const auto& [stripe, rows] : rows_of) {
      lines_[stripe].pieces.push_back(select_rows(batch, rows));
      lines_[stripe].waiting += static_cast<std::int64_t>(rows.size());
    }
    for (std::size_t row = 0; row < batch.refs.size(); ++row) {
      if (finite[row]) continue;
      const auto& ref = batch.refs[row];
      log::warning("{}: its encoding is not finite; the sample is left out", ref.id);
      lines_[ref.stripe].non_finite.add_non_finite(ref.archive, ref.hash);
      if (plan_.rejected) plan_.rejected->add({ref, Reason::non_finite, "its encoding is not finite"});
      --lines_[ref.stripe].taken;
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
    const ProducerReport report{static_cast<double>(encoder_.images()), encoder_.seconds(),
                                sender_.stats().stall_seconds};
    const auto bytes = pack_parcel({line.stripe, std::move(batch), news.to_bytes(), report});
    const int trainer = plan_.trainer_of[line.stripe];
    sender_.send(trainer, line.stripe, bytes, [&] {
      if (stop::requested()) sender_.report_signal(stop::signal_number());
      return false;
    });
  }

  StripeStream& stream_;
  CachedEncoder& encoder_;
  ParcelSender& sender_;
  const DataPlan& data_;
  const ProducerPlan& plan_;
  std::map<std::uint32_t, Line> lines_;
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
