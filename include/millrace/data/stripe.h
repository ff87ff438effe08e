#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "millrace/core/philox.h"
#include "millrace/data/manifest.h"
#include "millrace/data/sample.h"
#include "millrace/data/source.h"

// NOTE [Order by stripes]
// A run has S stripes, constant over restarts. Every epoch a permutation keyed by (seed, epoch) deals the units to the
// stripes; a stripe reads its units in turn, drops what is rejected, collects K accepted samples (fewer at the end of
// an epoch, so visits never mix), gives them out in a keyed order and goes on: an endless sequence that is a pure
// function of (seed, manifest, S, K, transform). Who reads a stripe, and with how many threads, changes nothing. The
// place in it is a StripeCursor: the first row of the current block and how many of its samples have been given.
namespace millrace {

// Which units a stripe reads in which epoch. Safe to use from several threads.
class Deal {
 public:
  Deal(std::uint64_t seed, StripePlan plan);

  // Indices into plan().units, in reading order. Every unit is in exactly one stripe's list of an epoch.
  std::vector<std::uint32_t> units_of(std::uint32_t stripe, std::uint32_t epoch) const;

  const StripePlan& plan() const { return plan_; }
  std::uint64_t seed() const { return seed_; }

 private:
  using Permutation = std::shared_ptr<const std::vector<std::uint32_t>>;
  Permutation permutation(std::uint32_t epoch) const;

  std::uint64_t seed_;
  StripePlan plan_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::uint32_t, Permutation>> recent_;  // stripes are never many epochs apart
};

// A row of a stripe, or the end of one of its epochs.
struct StripeRow {
  StripeCursor at;           // given = 0
  std::uint32_t unit = 0;    // index into the plan's units
  bool epoch_ended = false;  // then only at.epoch counts
  RawRow row;
};

// All rows of one stripe in reading order, without end.
class StripeReader {
 public:
  StripeReader(const Deal& deal, const SampleSource& source, std::uint32_t stripe, const StripeCursor& from);
  StripeRow next();

 private:
  StripeRow end_epoch();

  const Deal& deal_;
  const SampleSource& source_;
  std::uint32_t stripe_;
  StripeCursor at_;
  std::vector<std::uint32_t> units_;
  std::unique_ptr<UnitReader> reader_;
};

// The order in which a block's `size` accepted samples are given out.
std::vector<std::uint32_t> block_order(std::uint64_t seed, const SampleRef& first, std::uint32_t size);
// Samples in a block: the shuffle buffer's share of one stripe, at least one.
std::uint32_t block_size(int shuffle_buffer, std::uint32_t stripes);

// Collects the accepted samples of one stripe into shuffled blocks and tells each its cursor. `Sample` has a `ref`.
template <class Sample>
class BlockBuilder {
 public:
  BlockBuilder(std::uint64_t seed, std::uint32_t size, const StripeCursor& from)
      : seed_(seed), size_(size), start_{from.epoch, from.unit, from.row, 0}, skip_(from.given) {}

  // The stripe's next accepted sample, read at row `at`. Returns the block it completes, else nothing.
  std::vector<Sample> add(Sample sample, const StripeCursor& at) {
    block_.push_back(std::move(sample));
    return block_.size() < size_ ? std::vector<Sample>{} : give_out({at.epoch, at.unit, at.row + 1, 0});
  }

  // The epoch is over: returns the samples that are left of it.
  std::vector<Sample> end_epoch(std::uint32_t epoch) { return give_out({epoch + 1, 0, 0, 0}); }

  std::size_t held() const { return block_.size(); }

 private:
  std::vector<Sample> give_out(const StripeCursor& next) {
    std::vector<Sample> shuffled;
    if (!block_.empty()) {
      const auto order = block_order(seed_, block_.front().ref, static_cast<std::uint32_t>(block_.size()));
      for (std::uint32_t given = skip_; given < order.size(); ++given) {
        Sample& sample = block_[order[given]];
        sample.ref.after = start_;
        sample.ref.after.given = given + 1;
        shuffled.push_back(std::move(sample));
      }
      if (!shuffled.empty()) shuffled.back().ref.after = next;
    }
    block_.clear();
    start_ = next;
    skip_ = 0;
    return shuffled;
  }

  std::uint64_t seed_;
  std::uint32_t size_;
  StripeCursor start_;  // first row of the block
  std::uint32_t skip_;  // samples of the first block that were given out before
  std::vector<Sample> block_;
};

}  // namespace millrace
