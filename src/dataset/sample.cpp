#include "millrace/dataset/sample.h"

#include "millrace/image/decode.h"

namespace millrace {

std::vector<RngKey> rng_keys(std::uint64_t seed, std::span<const SampleRef> refs) {
  std::vector<RngKey> keys;
  for (const SampleRef& ref : refs) keys.push_back({seed, ref.hash, ref.epoch});
  return keys;
}

const char* to_string(RejectReason reason) {
  switch (reason) {
    case RejectReason::missing_image:
      return "missing_image";
    case RejectReason::missing_caption:
      return "missing_caption";
    case RejectReason::decode_error:
      return "decode_error";
    case RejectReason::truncated_image:
      return "truncated_image";
    case RejectReason::not_an_image:
      return "not_an_image";
    case RejectReason::too_small:
      return "too_small";
    case RejectReason::too_large:
      return "too_large";
    case RejectReason::filtered:
      return "filtered";
    case RejectReason::bad_json:
      return "bad_json";
    case RejectReason::archive_error:
      return "archive_error";
    case RejectReason::non_finite:
      return "non_finite";
  }
  return "unknown";
}

std::optional<RejectReason> try_parse_reject_reason(std::string_view name) {
  for (int i = 0; i < reason_count; ++i)
    if (name == to_string(static_cast<RejectReason>(i))) return static_cast<RejectReason>(i);
  return std::nullopt;
}

RejectReason reason_of(DecodeError error) {
  switch (error) {
    case DecodeError::not_an_image:
      return RejectReason::not_an_image;
    case DecodeError::undecodable:
      return RejectReason::decode_error;
    case DecodeError::truncated:
      return RejectReason::truncated_image;
    case DecodeError::too_small:
      return RejectReason::too_small;
    case DecodeError::too_large:
      return RejectReason::too_large;
  }
  return RejectReason::decode_error;
}

}  // namespace millrace
