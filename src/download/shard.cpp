#include "shard.h"

#include <utility>

namespace millrace {

Shard::Shard(ListSlice slice, const fs::path& out)
    : slice_(std::move(slice)), outcomes_(slice_.rows.size()), spool_(out) {}

void Shard::store(std::size_t index, StoredImage image) {
  RowOutcome& outcome = outcomes_[index];
  outcome.place = spool_.append(image.bytes);
  image.bytes = {};
  outcome.image = std::move(image);
  outcome.is_old = false;
  outcome.failure.reset();
}

void Shard::keep(std::size_t index, StoredImage image) {
  outcomes_[index].image = std::move(image);
  outcomes_[index].is_old = true;
}

void Shard::store(std::size_t index, Failure failure) {
  outcomes_[index].failure = std::move(failure);
}

const char* status_of(const RowOutcome& outcome) {
  if (outcome.image) return "success";
  const FailureKind kind = outcome.failure->kind;
  const bool came = kind == FailureKind::not_an_image || kind == FailureKind::broken_image;
  return came ? "failed_to_resize" : "failed_to_download";
}

ShardCounts count(const Shard& shard) {
  ShardCounts counts;
  counts.rows = static_cast<std::int64_t>(shard.rows());
  for (std::size_t i = 0; i < shard.rows(); ++i) {
    const RowOutcome& outcome = shard.outcome(i);
    const std::string_view status = status_of(outcome);
    ++(status == "success"            ? counts.successes
       : status == "failed_to_resize" ? counts.failed_to_resize
                                      : counts.failed_to_download);
    ++counts.messages[outcome.failure ? outcome.failure->message() : "success"];
  }
  return counts;
}

}  // namespace millrace
