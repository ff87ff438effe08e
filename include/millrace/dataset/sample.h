#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/philox.h"
#include "millrace/image/image.h"

// The words of the data flow: SampleRef -> RawSample (or EncodedSample, from a cache) -> TransformedSample or Rejected.
namespace millrace {

// Where a stripe stands: enough to continue reading, nothing more. A stripe shuffles block by block, so its place is
// the first row of the block it is in, and how many of the block's shuffled rows have been given out or left out.
struct StripeCursor {
  std::uint32_t epoch = 0;                                // of the samples in it
  std::uint32_t split = 0;                                // position in the stripe's list of splits of this epoch
  std::uint64_t row = 0;                                  // first row of the block, counted in the split
  std::uint32_t given = 0;                                // rows of the block that are behind it
  auto operator<=>(const StripeCursor&) const = default;  // less = behind
};

using StripeCursors = std::map<std::uint32_t, StripeCursor>;  // by stripe

// Ids travel with samples and stand in many files; a sample with a longer one is rejected.
inline constexpr std::size_t max_id_bytes = 1024;

// Names one use of one sample.
struct SampleRef {
  // ARCHIVE/KEY, as in ids.jsonl, records, ledger, cache; ARCHIVE of a rejected row whose key nobody knows.
  std::string id;
  std::uint64_t hash = 0;   // XXH3-64 of id: the sample's name in random keys
  std::uint32_t epoch = 0;  // 0 for the first use
  std::uint32_t stripe = 0;
  StripeCursor after;  // the stripe's cursor once this sample has been used
  // Where it lies, known to the process that reads it: index into the manifest, row of the archive (all splits
  // counted), and the byte of a plain tar at which it begins.
  std::uint32_t archive = 0;
  std::uint64_t row = 0;
  std::optional<std::uint64_t> offset = {};
};

// The keys of the random numbers of these uses in a run with this seed.
std::vector<RngKey> rng_keys(std::uint64_t seed, std::span<const SampleRef> refs);

// One sample as it lies in an archive.
struct RawSample {
  SampleRef ref;
  std::string image;                       // encoded bytes; empty = none
  std::string image_uri;                   // path or address of the image where the bytes are not here yet (lists)
  std::string caption;                     // UTF-8 (invalid bytes already replaced by U+FFFD)
  std::vector<std::string> more_captions;  // of the same image: each visit takes one of all by chance
  std::string json;                        // the metadata, a JSON object as text; empty = none
};

enum class RejectReason : std::uint8_t {
  missing_image,
  missing_caption,
  decode_error,
  truncated_image,
  not_an_image,
  too_small,
  too_large,
  filtered,
  bad_json,
  archive_error,
  non_finite,
};
inline constexpr int reason_count = static_cast<int>(RejectReason::non_finite) + 1;
const char* to_string(RejectReason reason);
// The filters dropped it, or could not read its metadata.
inline bool is_of_filters(RejectReason reason) {
  return reason == RejectReason::filtered || reason == RejectReason::bad_json;
}
// Another time the archive may be whole, and the image there.
inline bool may_be_gone(RejectReason reason) {
  return reason == RejectReason::archive_error || reason == RejectReason::missing_image;
}
// Why an image that cannot be decoded is rejected.
enum class DecodeError;
RejectReason reason_of(DecodeError error);
std::optional<RejectReason> try_parse_reject_reason(std::string_view name);

// A sample that cannot be used: a value, counted in the ledger, never thrown.
struct Rejected {
  SampleRef ref;
  RejectReason reason = RejectReason::decode_error;
  std::string detail;
  bool cached = false;    // a latent cache knew the reason; nothing was read
  std::string json = {};  // of a row without an image or caption its metadata, until filters have judged it
};

// What the encoders make of a sample, as bits of IEEE half precision; shapes as in EncodedBatch, without B.
struct Encoding {
  // Whoever only fills a cache does not load what it holds (CachedValues::keys_only).
  enum class Values { here, left_in_cache, left_not_finite };
  std::vector<std::uint16_t> moments, text;
  std::vector<std::int32_t> tokens = {};  // in place of `text`, where trainers have the text encoder
  Values values = Values::here;

  std::size_t bytes() const {
    return (moments.size() + text.size()) * sizeof(std::uint16_t) + tokens.size() * sizeof(std::int32_t);
  }
};

// A row whose encoding is known, so that nothing has to be read from its archive. Where finite values were left in the
// cache, it has no id.
struct EncodedSample {
  SampleRef ref;
  Encoding encoding;
};

// One sample ready for the encoders, or past them: then it has neither image nor tokens.
struct TransformedSample {
  SampleRef ref;
  Image image;                       // (resolution, resolution)
  std::vector<std::int32_t> tokens;  // [77]
  std::string caption;
  std::optional<Encoding> encoding = {};
};

}  // namespace millrace
