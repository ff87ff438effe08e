#include "millrace/encode/cached_encoder.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

torch::Tensor make_rows(std::int64_t rows, std::vector<std::int64_t> shape, torch::Dtype dtype) {
  shape.insert(shape.begin(), rows);
  return torch::empty(shape, dtype);
}

// The next time the archive may be whole, and the image there.
bool may_be_gone(RejectReason reason) {
  return reason == RejectReason::archive_error || reason == RejectReason::missing_image;
}

template <class Number>
void copy_row(const std::vector<Number>& from, torch::Tensor& to, std::int64_t row) {
  const auto size = static_cast<std::size_t>(to.numel() / to.size(0));
  ensure(from.size() == size, "a cached encoding has the shape of the run's");
  std::copy(from.begin(), from.end(), static_cast<Number*>(to.data_ptr()) + static_cast<std::size_t>(row) * size);
}

}  // namespace

CachedEncoder::CachedEncoder(Encoder* encoder, std::unique_ptr<CacheWriter> cache, CacheUse use, EncodingShape shape,
                             int batch_size)
    : encoder_(encoder), cache_(std::move(cache)), use_(use), shape_(std::move(shape)), batch_size_(batch_size) {}

CheckedBatch CachedEncoder::encode(std::vector<TransformedSample> samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  EncodedBatch batch;
  batch.moments = make_rows(count, shape_.moments, torch::kHalf);
  batch.text = make_rows(count, shape_.text, shape_.has_tokens() ? torch::kInt32 : torch::kHalf);
  std::vector<TransformedSample> fresh;
  std::vector<std::int64_t> fresh_rows;
  for (std::int64_t row = 0; row < count; ++row) {
    auto& sample = samples[row];
    batch.refs.push_back(sample.ref);
    if (sample.encoding) {
      copy_row(sample.encoding->moments, batch.moments, row);
      if (shape_.has_tokens()) {
        copy_row(sample.encoding->tokens, batch.text, row);
      } else {
        copy_row(sample.encoding->text, batch.text, row);
      }
    } else {
      fresh_rows.push_back(row);
      fresh.push_back(std::move(sample));
    }
  }
  if (!fresh.empty()) {
    ensure(encoder_ != nullptr, "without an encoder every sample is read with its encoding");
    const auto encoded = encoder_->encode(fresh);
    const auto rows = torch::tensor(fresh_rows, torch::kInt64);
    batch.moments.index_copy_(0, rows, encoded.moments);
    batch.text.index_copy_(0, rows, encoded.text);
  }
  auto finite = finite_rows(batch);
  write_cache([&] {
    for (std::size_t i = 0; i < fresh.size(); ++i) cache_->add(fresh[i], batch, fresh_rows[i], finite[fresh_rows[i]]);
  });
  return {std::move(batch), std::move(finite)};
}

void CachedEncoder::reject(const std::vector<RejectedRow>& rows) {
  write_cache([&] {
    for (const auto& [archive, row, reason] : rows)
      if (use_ == CacheUse::whole || !may_be_gone(reason)) cache_->reject(archive, row, reason);
  });
}

void CachedEncoder::finish() {
  write_cache([&] { cache_->publish(); });
}

template <class Write>
void CachedEncoder::write_cache(Write&& write) {
  const std::lock_guard lock(cache_mutex_);
  if (!cache_) return;
  try {
    write();
  } catch (const Error& error) {
    if (use_ == CacheUse::whole || error.exit() != Exit::io) throw;
    log::warning("encode.cache: {}; training continues and adds nothing more to the cache", error.what());
    cache_.reset();
  }
}

}  // namespace millrace
