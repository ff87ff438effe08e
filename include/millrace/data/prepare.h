#pragma once
#include <cstdint>
#include <variant>

#include "millrace/data/decode.h"
#include "millrace/data/filter.h"
#include "millrace/data/filter_watch.h"
#include "millrace/data/sample.h"
#include "millrace/data/tokenizer.h"
#include "millrace/data/transform.h"

namespace millrace {

// What makes an archive's sample ready for the encoders.
struct Preparation {
  std::uint64_t seed = 0;  // of crops and flips
  ImageConfig images;
  TransformConfig transform;
  const ClipTokenizer* tokenizer = nullptr;  // null = no tokens
  const Filter* filter = nullptr;            // null = keep all
  FilterWatch* filter_watch = nullptr;       // null = nobody watches
};

// Filter, decode, transform, tokenise: every way to fail is a Rejected.
std::variant<TransformedSample, Rejected> prepare_sample(RawSample sample, const Preparation& preparation);

}  // namespace millrace
