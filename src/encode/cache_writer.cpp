#include "millrace/encode/cache_writer.h"

#include <algorithm>
#include <span>

#include "millrace/core/error.h"
#include "millrace/core/open_files.h"

namespace millrace {
namespace {

template <class Number>
std::span<const Number> row_of(const torch::Tensor& values, std::int64_t row) {
  const auto size = static_cast<std::size_t>(values.numel() / values.size(0));
  return {static_cast<const Number*>(values.const_data_ptr()) + static_cast<std::size_t>(row) * size, size};
}

}  // namespace

CacheWriter::CacheWriter(const fs::path& cache, const Manifest& manifest, int rows_per_file, std::size_t max_open)
    : cache_(cache),
      manifest_(manifest),
      rows_per_file_(static_cast<std::size_t>(rows_per_file)),
      max_open_(max_open),
      description_(read_cache_description(cache)) {
  allow_open_files(3 * max_open);
}

void CacheWriter::add(const TransformedSample& sample, const EncodedBatch& batch, std::int64_t row, bool finite) {
  ensure(batch.moments.is_contiguous() && batch.text.is_contiguous(), "a cache takes dense rows");
  const auto& ref = sample.ref;
  if (ref.epoch > epoch_) {  // from now on rows are met again
    publish();
    epoch_ = ref.epoch;
  }
  if (!is_new(ref.archive, ref.row)) return;
  auto& writer = writer_of(ref.archive);
  LatentFileWriter::Row added{ref.row, ref.id, sample.caption, row_of<std::uint16_t>(batch.moments, row), {}, finite};
  if (description_.shape.has_tokens()) {
    added.tokens = row_of<std::int32_t>(batch.text, row);
  } else {
    added.text = row_of<std::uint16_t>(batch.text, row);
  }
  writer.add(added);
  if (writer.rows() < rows_per_file_) return;
  writer.publish();
  open_.pop_front();
}

bool CacheWriter::is_new(std::uint32_t archive, std::uint64_t row) {
  auto& rows = added_[archive];
  if (rows.size() <= row) rows.resize(row + 1);
  if (rows[row]) return false;
  return rows[row] = true;
}

void CacheWriter::reject(std::uint32_t archive, std::uint64_t row, RejectReason reason) {
  if (is_new(archive, row)) writer_of(archive).reject(row, reason);
}

LatentFileWriter& CacheWriter::writer_of(std::uint32_t archive) {
  const auto found =
      std::find_if(open_.begin(), open_.end(), [&](const auto& entry) { return entry.first == archive; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    open_.emplace_front(archive, LatentFileWriter(cache_, manifest_.archives.at(archive), description_));
  }
  if (open_.size() > max_open_) {
    open_.back().second.publish();
    open_.pop_back();
  }
  return open_.front().second;
}

void CacheWriter::publish() {
  for (; !open_.empty(); open_.pop_front()) open_.front().second.publish();
}

void CacheWriter::publish_all_but(const std::set<std::uint32_t>& archives) {
  for (auto entry = open_.begin(); entry != open_.end();) {
    const auto behind = entry++;
    if (archives.contains(behind->first)) continue;
    behind->second.publish();
    open_.erase(behind);
  }
}

}  // namespace millrace
