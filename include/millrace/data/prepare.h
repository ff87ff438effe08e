#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

// Where the time of samples goes; summed over samples and threads.
struct PrepareSeconds {
  double read = 0;  // bytes from an archive, or of an image that a list names; the filters
  double decode = 0;
  double transform = 0;  // resize, crop, flip
  double tokenise = 0;

  double total() const { return read + decode + transform + tokenise; }
  void add(const PrepareSeconds& other, double factor = 1);
};

// What the filters say of a sample, before anything is decoded: the reason why not, and what is to be said of it.
std::optional<std::pair<Reason, std::string>> judge_metadata(const RawSample& sample, const Preparation& preparation);

// Decode, transform, tokenise: every way to fail is a Rejected. Adds the time it took to `spent`.
std::variant<TransformedSample, Rejected> prepare_sample(RawSample sample, const Preparation& preparation,
                                                         PrepareSeconds& spent);

}  // namespace millrace
