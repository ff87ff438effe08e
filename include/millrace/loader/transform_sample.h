#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "millrace/dataset/filter.h"
#include "millrace/dataset/image_uri.h"
#include "millrace/dataset/sample.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/image/decode.h"
#include "millrace/image/transform.h"
#include "millrace/loader/enlarged_watch.h"
#include "millrace/loader/filter_watch.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

// How a sample of an archive is made ready for the encoders.
struct TransformPipeline {
  std::uint64_t seed = 0;  // of crops and flips
  ImageConfig images;
  TransformConfig transform;
  const ClipTokenizer* tokenizer = nullptr;  // null = no tokens
  const Filter* filter = nullptr;            // null = keep all
  FilterWatch* filter_watch = nullptr;       // null = nobody watches
  bool one_caption = false;                  // of several captions, the same one in every epoch
  StorageRetry* retry = nullptr;             // for images that lists name; null = StorageErrors are thrown
  LastFiles* last_files = nullptr;           // the same, see NOTE [Missing or away]; null = nobody looks
  EnlargedWatch* enlarged_watch = nullptr;   // null = nobody watches
};

// Time spent on samples, by stage; summed over samples and threads.
struct TransformSeconds {
  double read = 0;  // bytes from an archive, or of an image that a list names; the filters
  double decode = 0;
  double transform = 0;  // resize, crop, flip
  double tokenize = 0;

  double total() const { return read + decode + transform + tokenize; }
  void add(const TransformSeconds& other, double factor = 1);
};

// Applies the filters to a sample before anything is decoded: nothing if it is kept, else why it is rejected, and a
// detail.
std::optional<std::pair<RejectReason, std::string>> judge_metadata(const RawSample& sample,
                                                                   const TransformPipeline& transforms);

// If the filters drop a row that was rejected, for lack of an image say, it counts as filtered, as a row with an image
// would.
void judge_rejected(Rejected& rejected, const TransformPipeline& transforms);

// Decode, transform, tokenize: every way to fail is a Rejected. Adds the time it took to `spent`.
std::variant<TransformedSample, Rejected> transform_sample(RawSample sample, const TransformPipeline& transforms,
                                                           TransformSeconds& spent);

}  // namespace millrace
