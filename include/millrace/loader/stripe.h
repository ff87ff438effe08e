#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"
#include "millrace/dataset/source.h"
#include "millrace/loader/data_plan.h"

// NOTE [Order by stripes]
// A run has S stripes, constant over restarts. Every epoch a permutation keyed by (seed, epoch) assigns the splits to
// the stripes. A stripe reads its splits in turn, drops what the filters drop, collects a block of K of the other rows
// (fewer at the end of an epoch, so epochs never mix), gives them out in a keyed order, leaving out those rejected for
// any other reason, and begins the next block. So a stripe is an endless sequence of samples, a pure function of (seed,
// manifest, S, K, filters, transform): who reads it, with how many threads, and what a cache already knows change
// nothing. The position in it is a StripeCursor: the first row of the current block, and how many of its rows have been
// given out or left out. Rows are shuffled as they are in the archive, so a block that waits holds files, not pixels,
// and a resumed block decodes only what is left of it.
namespace millrace {

// Which splits a stripe reads in which epoch. Safe to use from several threads.
class EpochOrder {
 public:
  EpochOrder(std::uint64_t seed, StripePlan plan);

  // Indices into plan().splits, in reading order. Every split is in exactly one stripe's list of an epoch.
  std::vector<std::uint32_t> splits_of(std::uint32_t stripe, std::uint32_t epoch) const;

  const StripePlan& plan() const { return plan_; }
  std::uint64_t seed() const { return seed_; }

 private:
  using Permutation = std::shared_ptr<const std::vector<std::uint32_t>>;
  Permutation permutation(std::uint32_t epoch) const;

  std::uint64_t seed_;
  StripePlan plan_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<std::uint32_t, Permutation>>
      recent_;  // others are recomputed: with few rows stripes are epochs apart
};

// A row of a stripe, or the end of one of its epochs.
struct StripeRow {
  StripeCursor at;            // given = 0
  std::uint32_t split = 0;    // index into the plan's splits
  std::optional<RawRow> row;  // nothing where epoch at.epoch ends
};

// All rows of one stripe in reading order, without end.
class StripeReader {
 public:
  StripeReader(const EpochOrder& order, const SampleSource& source, std::uint32_t stripe, const StripeCursor& from);
  StripeRow next();

 private:
  StripeRow end_epoch();

  const EpochOrder& order_;
  const SampleSource& source_;
  std::uint32_t stripe_;
  StripeCursor at_;
  std::vector<std::uint32_t> splits_;
  std::unique_ptr<SplitReader> reader_;
};

// A row of a block, in the order in which rows are given out: its index in reading order, and the cursor after it.
struct GivenRow {
  std::uint32_t row = 0;
  StripeCursor after;
};
// The order in which a block of `size` rows is given out. It begins at `start` (`start.given` of its rows have been
// given out already), and `next` follows it. The order is keyed by the place where the block begins.
std::vector<GivenRow> plan_block(std::uint64_t seed, std::uint32_t stripe, std::uint32_t size,
                                 const StripeCursor& start, const StripeCursor& next);

}  // namespace millrace
