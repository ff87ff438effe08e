#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "millrace/core/hash.h"
#include "millrace/dataset/source.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/stripe.h"

namespace millrace::test {

// What becomes of each row of an archive: accepted, or rejected for a reason.
using Rows = std::vector<std::optional<RejectReason>>;

// Bytes that no decoder takes.
inline const std::string broken_image = "<html>";

// A JPEG of 16 x 16 pixels.
inline std::string small_jpeg() {
  SourceConfig config;
  config.type = SourceConfig::Type::synthetic;
  config.limit = 1;
  const Manifest manifest = make_manifest(config, false);
  return std::get<RawSample>(*make_source(config, manifest, 16)->open({0, 0, 1}, 0)->next()).image;
}

// Archives in memory, whose accepted rows are samples with the bytes `image`. Rows that are to be rejected as
// not_an_image are samples as well, with broken bytes; the others are rejected on reading.
class FakeSource final : public SampleSource {
 public:
  explicit FakeSource(std::vector<Rows> rows, std::string image = {})
      : rows_(std::move(rows)), image_(std::move(image)) {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      Archive archive;
      archive.name = archive.path = fmt::format("{:03}", i);
      archive.seekable = true;
      archive.rows = rows_[i].size();
      manifest_.archives.push_back(archive);
    }
  }

  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    return std::make_unique<Reader>(*this, split, first_row);
  }
  const Manifest& manifest() const { return manifest_; }
  std::string id(std::size_t archive, std::size_t row) const { return fmt::format("{:03}/{}", archive, row); }
  std::size_t accepted() const {
    std::size_t count = 0;
    for (const auto& archive : rows_) count += std::count(archive.begin(), archive.end(), std::nullopt);
    return count;
  }

 private:
  struct Reader final : SplitReader {
    Reader(const FakeSource& source, const Split& split, std::uint64_t first_row)
        : source(source), split(split), index(split.index + first_row * split.count) {}
    std::optional<RawRow> next() override {
      const auto& rows = source.rows_[split.archive];
      if (index >= rows.size()) return std::nullopt;
      SampleRef ref;
      ref.id = source.id(split.archive, index);
      ref.hash = hash64(ref.id);
      const std::optional<RejectReason> reason = rows[index];
      index += split.count;
      if (reason && *reason != RejectReason::not_an_image) return Rejected{ref, *reason, ""};
      RawSample sample;
      sample.ref = ref;
      sample.image = reason ? broken_image : source.image_;
      sample.caption = ref.id;
      return sample;
    }
    const FakeSource& source;
    const Split split;
    std::uint64_t index;
  };

  std::vector<Rows> rows_;
  std::string image_;
  Manifest manifest_;
};

// The definition of a stripe's order in its simplest form: one row after the other, nothing read ahead.
class PlainStripe {
 public:
  PlainStripe(const EpochOrder& order, const SampleSource& source, std::uint32_t stripe, std::uint32_t block,
              const StripeCursor& from)
      : order_(order), reader_(order, source, stripe, from), stripe_(stripe), block_size_(block), start_(from) {}

  SampleRef next() {
    while (true) {
      while (at_ == given_.size()) read_block();
      const auto& [row, after] = given_[at_++];
      if (auto* sample = std::get_if<RawSample>(&block_[row]); sample && sample->image != broken_image) {
        sample->ref.after = after;
        return sample->ref;
      }
    }
  }

 private:
  void read_block() {
    block_.clear();
    StripeCursor next;
    do {
      StripeRow row = reader_.next();
      next = row.row ? StripeCursor{row.at.epoch, row.at.split, row.at.row + 1, 0}
                     : StripeCursor{row.at.epoch + 1, 0, 0, 0};
      if (!row.row) break;
      const auto* rejected = std::get_if<Rejected>(&*row.row);
      if (!rejected || !is_of_filters(rejected->reason)) block_.push_back(std::move(*row.row));
    } while (block_.size() < block_size_);
    given_ = plan_block(order_.seed(), stripe_, static_cast<std::uint32_t>(block_.size()), start_, next);
    start_ = next;
    at_ = 0;
  }

  const EpochOrder& order_;
  StripeReader reader_;
  const std::uint32_t stripe_, block_size_;
  StripeCursor start_;
  std::vector<RawRow> block_;
  std::vector<GivenRow> given_;
  std::size_t at_ = 0;
};

}  // namespace millrace::test
