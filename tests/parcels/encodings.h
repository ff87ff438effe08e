#pragma once
#include <torch/utils.h>

#include <algorithm>
#include <deque>
#include <set>

#include "millrace/core/hash.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/parcels/parcel_bytes.h"

// Encoded samples without encoders, and parcels without producers.
namespace millrace::test {

constexpr std::int64_t latent_channels = 4, latent_side = 4, text_tokens = 6, text_width = 16;

// Sample n of a stripe, n = 0, 1, ...
inline SampleRef make_ref(std::uint32_t stripe, int n) {
  SampleRef ref;
  ref.id = fmt::format("stripe-{}/{}", stripe, n);
  ref.hash = hash64(ref.id);
  ref.epoch = static_cast<std::uint32_t>(n / 100);
  ref.stripe = stripe;
  ref.after.row = static_cast<std::uint64_t>(n + 1);
  return ref;
}

// Samples [first, first + count) of a stripe; what they hold follows from their ids.
inline EncodedBatch make_batch(std::uint32_t stripe, int first, int count) {
  EncodedBatch batch;
  std::vector<torch::Tensor> moments, text;
  for (int n = first; n < first + count; ++n) {
    batch.refs.push_back(make_ref(stripe, n));
    torch::manual_seed(batch.refs.back().hash);
    moments.push_back(torch::randn({2 * latent_channels, latent_side, latent_side}));
    text.push_back(torch::randn({text_tokens, text_width}));
  }
  batch.moments = torch::stack(moments).to(torch::kHalf);
  batch.text = torch::stack(text).to(torch::kHalf);
  return batch;
}

// Those samples on their way.
inline ParcelContent make_content(std::uint32_t stripe, int first, int count) {
  ParcelContent content;
  content.stripe = stripe;
  content.batch = make_batch(stripe, first, count);
  return content;
}

// Gives out parcels in the order in which the test has put them here, and knows how many of each producer are held. One
// that was given back holds other bytes.
class ScriptedReceiver final : public ParcelReceiver {
 public:
  void put(int producer, const ParcelContent& content) { waiting_.push_back({producer, pack_parcel(content)}); }
  void put(int producer, std::uint32_t stripe, int first, int count) {
    put(producer, make_content(stripe, first, count));
  }
  int held(int producer) const { return held_.contains(producer) ? held_.at(producer) : 0; }
  int given() const { return given_; }
  void set_signal(int signal) { signal_ = signal; }
  // Once, when nothing is left to be given.
  void fail_with(const Error& error) { error_ = error; }

  std::optional<Parcel> receive(double) override {
    if (waiting_.empty() && error_) throw *std::exchange(error_, std::nullopt);
    if (waiting_.empty()) return std::nullopt;
    given_bytes_.push_back(std::move(waiting_.front().bytes));
    const int producer = waiting_.front().producer;
    waiting_.pop_front();
    ++held_[producer];
    ++given_;
    return Parcel(given_bytes_.back(), producer, [this, producer, &bytes = given_bytes_.back()] {
      std::ranges::fill(bytes, std::byte{0xff});
      --held_[producer];
    });
  }
  void poll() override {}
  void request_stop() override {}
  int signal_number() const override { return signal_; }
  void finish(double) override {}
  std::string producer_name(int producer) const override { return "producer " + std::to_string(producer); }
  int ready() override { return static_cast<int>(waiting_.size()); }

 private:
  struct Waiting {
    int producer;
    std::vector<std::byte> bytes;
  };
  std::deque<Waiting> waiting_;
  std::deque<std::vector<std::byte>> given_bytes_;  // never move: parcels refer to them
  std::map<int, int> held_;
  int given_ = 0, signal_ = 0;
  std::optional<Error> error_;
};

}  // namespace millrace::test
