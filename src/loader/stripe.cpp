#include "millrace/loader/stripe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/core/philox.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

EpochOrder::EpochOrder(std::uint64_t seed, StripePlan plan) : seed_(seed), plan_(std::move(plan)) {
  ensure(plan_.stripes >= 1 && !plan_.splits.empty(), "an order needs stripes and splits");
}

EpochOrder::Permutation EpochOrder::permutation(std::uint32_t epoch) const {
  constexpr std::size_t kept = 4;
  std::lock_guard lock(mutex_);
  for (const auto& [known, order] : recent_) {
    if (known == epoch) return order;
  }
  std::vector<std::uint32_t> order(plan_.splits.size());
  std::iota(order.begin(), order.end(), 0u);
  keyed_shuffle({seed_, 0, epoch}, Purpose::assign_splits, order);
  if (recent_.size() == kept) recent_.erase(std::min_element(recent_.begin(), recent_.end()));
  recent_.emplace_back(epoch, std::make_shared<const std::vector<std::uint32_t>>(std::move(order)));
  return recent_.back().second;
}

std::vector<std::uint32_t> EpochOrder::splits_of(std::uint32_t stripe, std::uint32_t epoch) const {
  ensure(stripe < plan_.stripes, "no such stripe");
  const Permutation order = permutation(epoch);
  std::vector<std::uint32_t> splits;
  for (std::size_t place = stripe; place < order->size(); place += plan_.stripes) splits.push_back((*order)[place]);
  return splits;
}

static Rejected oversized(SampleRef ref) {
  const auto why = fmt::format("an id of {} bytes", ref.id.size());
  return {std::move(ref), RejectReason::too_large, why};
}

StripeReader::StripeReader(const EpochOrder& order, const SampleSource& source, std::uint32_t stripe,
                           const StripeCursor& from)
    : order_(order),
      source_(source),
      stripe_(stripe),
      at_{from.epoch, from.split, from.row, 0},
      splits_(order.splits_of(stripe, from.epoch)) {}

StripeRow StripeReader::next() {
  while (at_.split < splits_.size()) {
    const std::uint32_t split = splits_[at_.split];
    const Split& part = order_.plan().splits[split];
    if (!reader_) reader_ = source_.open(part, at_.row);
    if (std::optional<RawRow> row = reader_->next()) {
      SampleRef& ref = std::visit([](auto& content) -> SampleRef& { return content.ref; }, *row);
      ref.epoch = at_.epoch;
      ref.stripe = stripe_;
      ref.archive = part.archive;
      ref.row = part.row(at_.row);
      if (ref.id.size() > max_id_bytes) row = oversized(std::move(ref));
      StripeRow result{at_, split, std::move(row)};
      ++at_.row;
      return result;
    }
    reader_.reset();
    at_ = {at_.epoch, at_.split + 1, 0, 0};
  }
  return end_epoch();
}

StripeRow StripeReader::end_epoch() {
  StripeRow end;
  end.at = at_;
  at_ = {at_.epoch + 1, 0, 0, 0};
  splits_ = order_.splits_of(stripe_, at_.epoch);
  return end;
}

static std::uint64_t hash_of_place(std::uint32_t stripe, const StripeCursor& start) {
  std::array<char, 16> place;
  std::memcpy(place.data(), &stripe, 4);
  std::memcpy(place.data() + 4, &start.split, 4);
  std::memcpy(place.data() + 8, &start.row, 8);
  return hash64({place.data(), place.size()});
}

std::vector<GivenRow> plan_block(std::uint64_t seed, std::uint32_t stripe, std::uint32_t size,
                                 const StripeCursor& start, const StripeCursor& next) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  keyed_shuffle({seed, hash_of_place(stripe, start), start.epoch}, Purpose::shuffle, order);
  std::vector<GivenRow> rows;
  for (std::uint32_t given = start.given; given < size; ++given)
    rows.push_back({order[given], {start.epoch, start.split, start.row, given + 1}});
  if (!rows.empty()) rows.back().after = next;
  return rows;
}

}  // namespace millrace
