#include "millrace/encode/cached_encoder.h"

#include <algorithm>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

template <class Number>
void copy_row(const std::vector<Number>& from, torch::Tensor& to, std::int64_t row) {
  const auto size = static_cast<std::size_t>(to.numel() / to.size(0));
  ensure(from.size() == size, "a cached encoding has the shape of the run's");
  std::copy(from.begin(), from.end(), static_cast<Number*>(to.data_ptr()) + static_cast<std::size_t>(row) * size);
}

void copy_encoding(const TransformedSample& sample, EncodedBatch& batch, std::int64_t row) {
  batch.refs[row] = sample.ref;
  copy_row(sample.encoding->moments, batch.moments, row);
  if (batch.text.scalar_type() == torch::kInt32) {
    copy_row(sample.encoding->tokens, batch.text, row);
  } else {
    copy_row(sample.encoding->text, batch.text, row);
  }
}

// What was encoded becomes rows `rows` of `batch`, or all of it.
void fill_in(EncodedBatch encoded, const std::vector<std::int64_t>& rows, EncodedBatch& batch) {
  if (batch.refs.empty()) {
    batch = std::move(encoded);
    return;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) batch.refs[rows[i]] = std::move(encoded.refs[i]);
  const auto index = torch::tensor(rows, torch::kInt64);
  batch.moments.index_copy_(0, index, encoded.moments);
  batch.text.index_copy_(0, index, encoded.text);
}

}  // namespace

CachedEncoder::CachedEncoder(Encoder* encoder, std::unique_ptr<CacheWriter> cache, CacheUse use, EncodingShape shape,
                             int batch_size)
    : encoder_(encoder), cache_(std::move(cache)), use_(use), shape_(std::move(shape)), batch_size_(batch_size) {}

StartedEncoding CachedEncoder::start(std::vector<TransformedSample> samples) {
  StartedEncoding started;
  if (std::ranges::any_of(samples, [](const auto& sample) { return sample.encoding.has_value(); }))
    started.batch = make_empty_batch(std::ssize(samples), shape_);
  for (std::int64_t row = 0; row < std::ssize(samples); ++row) {
    auto& sample = samples[row];
    if (sample.encoding) {
      copy_encoding(sample, started.batch, row);
    } else {
      started.fresh_rows.push_back(row);
      started.fresh.push_back(std::move(sample));
    }
  }
  if (started.fresh.empty()) return started;
  ensure(encoder_ != nullptr, "without an encoder every sample is read with its encoding");
  started.encoded = encoder_->start(started.fresh);
  for (auto& sample : started.fresh) sample.image = {};
  return started;
}

CheckedBatch CachedEncoder::collect(StartedEncoding started) {
  auto& batch = started.batch;
  const auto& fresh = started.fresh;
  const auto& rows = started.fresh_rows;
  if (!fresh.empty()) fill_in(encoder_->collect(std::move(started.encoded)), rows, batch);
  auto finite = finite_rows(batch);
  write_cache([&] {
    for (std::size_t i = 0; i < fresh.size(); ++i) cache_->add(fresh[i], batch, rows[i], finite[rows[i]]);
  });
  return {std::move(batch), std::move(finite)};
}

// Who sends parcels shall not wait for files that are being published.
void CachedEncoder::reject(const std::vector<RejectedRow>& rows) {
  const std::lock_guard lock(rejected_mutex_);
  rejected_.insert(rejected_.end(), rows.begin(), rows.end());
}

std::vector<RejectedRow> CachedEncoder::take_rejected() {
  const std::lock_guard lock(rejected_mutex_);
  return std::exchange(rejected_, {});
}

void CachedEncoder::finish() {
  write_cache([&] { cache_->publish(); });
}

void CachedEncoder::finish_all_but(const std::set<std::uint32_t>& archives) {
  write_cache([&] { cache_->publish_all_but(archives); });
}

template <class Write>
void CachedEncoder::write_cache(Write&& write) {
  const auto rejected = take_rejected();
  if (!cache_) return;
  try {
    for (const auto& [archive, row, reason] : rejected)
      if (use_ == CacheUse::whole || !may_be_gone(reason)) cache_->reject(archive, row, reason);
    write();
  } catch (const Error& error) {
    if (use_ == CacheUse::whole || error.exit() != Exit::io) throw;
    log::warning("encode.cache: {}; training continues and adds nothing more to the cache", error.what());
    cache_.reset();
  }
}

}  // namespace millrace
