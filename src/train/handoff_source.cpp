#include "millrace/train/handoff_source.h"

#include <chrono>

#include "millrace/core/error.h"

namespace millrace {

HandoffSource::HandoffSource(ParcelReceiver& receiver, std::vector<std::uint32_t> stripes,
                             std::map<std::uint32_t, int> producer_of, int samples_per_stripe, double limit_seconds)
    : receiver_(receiver),
      stripes_(std::move(stripes)),
      producer_of_(std::move(producer_of)),
      samples_per_stripe_(samples_per_stripe),
      limit_seconds_(limit_seconds) {}

EncodedBatch HandoffSource::next() {
  for (auto stripe : stripes_) fill(stripe);
  std::vector<EncodedBatch> pieces;
  for (auto stripe : stripes_) take(lines_[stripe], pieces);

  EncodedBatch share;
  std::vector<torch::Tensor> moments, text;
  for (auto& piece : pieces) {
    share.refs.insert(share.refs.end(), piece.refs.begin(), piece.refs.end());
    moments.push_back(piece.moments);
    text.push_back(piece.text);
  }
  share.moments = torch::cat(moments);
  share.text = torch::cat(text);
  receiver_.poll();
  return share;
}

bool HandoffSource::lacks(int producer) const {
  for (const auto& [stripe, owner] : producer_of_) {
    if (owner != producer) continue;
    const auto line = lines_.find(stripe);
    if (line == lines_.end() || line->second.samples < samples_per_stripe_) return true;
  }
  return false;
}

void HandoffSource::fill(std::uint32_t stripe) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_seconds_);
  const int producer = producer_of_.at(stripe);
  while (lines_[stripe].samples < samples_per_stripe_) {
    auto& held = held_[producer];
    if (!held.empty()) {
      unpack(held.front());
      held.pop_front();
      continue;
    }
    if (auto parcel = receiver_.receive(1.0)) {
      const int from = parcel->producer();
      if (lacks(from)) {
        unpack(*parcel);
      } else {
        held_[from].push_back(std::move(*parcel));
      }
    } else if (std::chrono::steady_clock::now() > deadline) {
      throw Error(
          Exit::suspect,
          fmt::format("no samples of stripe {} from producer {} for {:.0f} s", stripe, producer, limit_seconds_),
          "look at that producer's log; guard.hang_timeout sets the limit");
    }
  }
}

void HandoffSource::unpack(const Parcel& parcel) {
  auto content = unpack_parcel(parcel.bytes());
  reports_[parcel.producer()] = content.report;
  if (!content.ledger_delta.empty()) news_.append(LedgerDelta::from_bytes(content.ledger_delta));
  Line& line = lines_[content.stripe];
  line.samples += static_cast<std::int64_t>(content.batch.refs.size());
  line.batches.push_back(std::move(content.batch));
}

// Moves the next samples of a line to `pieces`; what is left of a batch stays in front.
void HandoffSource::take(Line& line, std::vector<EncodedBatch>& pieces) {
  std::int64_t wanted = samples_per_stripe_;
  line.samples -= wanted;
  while (wanted > 0) {
    EncodedBatch& front = line.batches.front();
    const auto there = static_cast<std::int64_t>(front.refs.size());
    const auto taken = std::min(wanted, there);
    pieces.push_back({{front.refs.begin(), front.refs.begin() + taken},
                      front.moments.slice(0, 0, taken),
                      front.text.slice(0, 0, taken)});
    wanted -= taken;
    if (taken == there) {
      line.batches.pop_front();
    } else {
      front.refs.erase(front.refs.begin(), front.refs.begin() + taken);
      front.moments = front.moments.slice(0, taken);
      front.text = front.text.slice(0, taken);
    }
  }
}

LedgerDelta HandoffSource::take_ledger_delta() {
  return std::exchange(news_, {});
}

}  // namespace millrace
