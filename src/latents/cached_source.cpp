#include "millrace/latents/cached_source.h"

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "cached_archive.h"
#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/dataset/row.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/latent_cache.h"

namespace millrace {

namespace {

// One split, each row from where it is to be had.
class CachedReader final : public SplitReader {
 public:
  // Rows of the archive, where the run that has finished the cache tells them.
  using FinishedEnd = std::function<std::optional<std::uint64_t>()>;

  CachedReader(std::shared_ptr<const CachedArchive> cached, const Archive& archive, const SampleSource* original,
               const Split& split, std::uint64_t first_row, FinishedEnd finished_end, CachedValues values)
      : cached_(std::move(cached)),
        archive_(archive),
        original_(original),
        split_(split),
        next_(first_row),
        finished_end_(std::move(finished_end)),
        values_(values) {}

  std::optional<RawRow> next() override {
    const std::uint64_t number = next_++, row = split_.row(number);
    if (archive_.limit && row >= *archive_.limit) return std::nullopt;
    const auto places = cached_->find(row);
    // A damaged copy may have sound ones beside it. What counts less is no copy: an older answer about the same row.
    for (const CachedPlace& place : places)
      if (place.standing() == places.front().standing())
        if (auto known = try_take(place)) return known;
    if (!original_ && !places.empty()) return cached_->load(places.front(), opened_);  // says what is wrong with it
    if (is_behind_end(row)) return std::nullopt;
    return read_original(number, row);
  }

 private:
  // Whether a row in no latent file lies past the archive's end. Asks the archive's own END first: MANIFEST.json is one
  // large file for all archives.
  bool is_behind_end(std::uint64_t row) const {
    if (const auto end = cached_->end(); end && (original_ || row >= *end)) return row >= *end;
    const auto end = finished_end_();
    return end && row >= *end;
  }

  std::optional<RawRow> try_take(const CachedPlace& place) {
    if (place.rejected() && asks_again(place.reason())) return std::nullopt;
    if (place.rejected()) return Rejected{name_archive(archive_), place.reason(), {}, /*cached=*/true};
    if (values_ == CachedValues::keys_only) return tell(place);
    if (auto sample = cached_->try_load(place, opened_)) return std::move(*sample);
    return std::nullopt;
  }

  // Who fills a cache looks once more for what may have come back since; who trains on it takes it as it is.
  bool asks_again(RejectReason reason) const {
    return original_ && values_ == CachedValues::keys_only && may_be_gone(reason);
  }

  EncodedSample tell(const CachedPlace& place) const {
    EncodedSample sample;
    sample.encoding.values = Encoding::Values::left_in_cache;
    if (const std::string* id = cached_->non_finite(place)) {
      sample.encoding.values = Encoding::Values::left_not_finite;
      sample.ref.id = *id;
      sample.ref.hash = hash64(*id);
    }
    return sample;
  }

  std::optional<RawRow> read_original(std::uint64_t number, std::uint64_t row) {
    if (!original_)
      throw Error(Exit::io, fmt::format("row {} of archive {} is not in the latent cache", row, archive_.name),
                  "run millrace preprocess again, with this archive among its data, or without its folder in rows/; or "
                  "train on the images with encode.cache");
    if (!reader_) {
      at_ = is_whole() && number > 0 ? number - 1 : number;  // an end that follows a sound row is the archive's own
      reader_ = original_->open(split_, at_);
    }
    while (at_ < number) {
      auto before = take_original();
      // It breaks ahead of a row that the cache has: told in place of its end, which it would seem to be.
      if (before && !was_sound_ && is_in_cache(split_.row(number - 1))) return before;
    }
    const bool follows_sound_row = was_sound_;
    auto next = take_original();
    if (!next && follows_sound_row && is_whole()) cached_->remember_end(row);
    return next;
  }

  bool is_in_cache(std::uint64_t row) const {
    const auto places = cached_->find(row);
    return !places.empty() && !(places.front().rejected() && places.front().reason() == RejectReason::archive_error);
  }

  bool is_whole() const { return split_.count == 1 && !archive_.limit; }

  std::optional<RawRow> take_original() {
    ++at_;
    auto row = reader_->next();
    const auto* rejected = row ? std::get_if<Rejected>(&*row) : nullptr;
    was_sound_ = row && !(rejected && rejected->reason == RejectReason::archive_error);
    return row;
  }

  const std::shared_ptr<const CachedArchive> cached_;
  CachedArchive::Opened opened_;
  const Archive& archive_;
  const SampleSource* const original_;
  const Split split_;
  std::uint64_t next_;  // row of the split
  const FinishedEnd finished_end_;
  const CachedValues values_;
  std::unique_ptr<SplitReader> reader_;  // of the original, from before the first row that was not cached
  std::uint64_t at_ = 0;                 // its next row
  bool was_sound_ = false;               // its last row was there, and no archive_error
};

class CachedSource final : public SampleSource {
 public:
  CachedSource(const fs::path& cache, const Manifest& manifest, std::unique_ptr<SampleSource> original,
               CachedValues values)
      : cache_(cache),
        manifest_(manifest),
        original_(std::move(original)),
        values_(values),
        shape_(read_cache_description(cache).shape) {}

  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    const Archive& archive = manifest_.archives.at(split.archive);
    const auto finished_end = [this, number = split.archive] { return finished_end_of(number); };
    return std::make_unique<CachedReader>(rows_of(split.archive), archive, original_.get(), split, first_row,
                                          finished_end, values_);
  }

 private:
  // Splits of an archive that are read at the same time share what is known about it.
  std::shared_ptr<const CachedArchive> rows_of(std::uint32_t number) const {
    const Archive& archive = manifest_.archives[number];
    std::lock_guard lock(mutex_);
    auto& known = archives_[number];
    auto rows = known.lock();
    if (!rows || !rows->up_to_date()) known = rows = std::make_shared<const CachedArchive>(cache_, archive, shape_);
    return rows;
  }

  std::optional<std::uint64_t> finished_end_of(std::uint32_t number) const {
    std::lock_guard lock(ends_mutex_);
    if (!ends_) ends_ = read_ends();
    return (*ends_)[number];
  }

  // A run with another limit may have stopped earlier, a broken archive may be whole now, and one of another size may
  // have more rows: of these the original has to tell.
  std::vector<std::optional<std::uint64_t>> read_ends() const {
    std::vector<std::optional<std::uint64_t>> ends(manifest_.archives.size());
    for_each_finished(cache_, manifest_, [&](std::size_t i, const CacheManifest::Entry& entry) {
      const Archive &then = entry.archive, &now = manifest_.archives[i];
      const bool all_known = then.limit == now.limit && then.bytes == now.bytes && !entry.broken;
      if (!original_ || all_known) ends[i] = entry.total;
    });
    return ends;
  }

  const fs::path cache_;
  const Manifest& manifest_;
  const std::unique_ptr<SampleSource> original_;
  const CachedValues values_;
  const EncodingShape shape_;
  mutable std::mutex ends_mutex_;
  mutable std::optional<std::vector<std::optional<std::uint64_t>>> ends_;  // once one was asked for
  mutable std::mutex mutex_;
  mutable std::map<std::uint32_t, std::weak_ptr<const CachedArchive>> archives_;
};

}  // namespace

std::unique_ptr<SampleSource> make_cached_source(const fs::path& cache, const Manifest& manifest,
                                                 std::unique_ptr<SampleSource> original, CachedValues values) {
  return std::make_unique<CachedSource>(cache, manifest, std::move(original), values);
}

}  // namespace millrace
