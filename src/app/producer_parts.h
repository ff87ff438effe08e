#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "config.h"
#include "millrace/comm/group.h"
#include "millrace/data/latent_cache.h"
#include "millrace/data/stream.h"
#include "millrace/encode/cached_encoder.h"
#include "millrace/models/pipeline_folder.h"
#include "session.h"

// From archives to encodings: what producers of `train` and the ranks of `preprocess` have in common.
namespace millrace {

// What every rank knows about the encodings before the first one is made.
struct EncodingPlan {
  EncodingShape shape;
  bool encodes = true;                         // false: data.train.type=latents, all encodings are read
  std::optional<std::filesystem::path> cache;  // read from; while `encodes` also added to; else from Parquet files
  nlohmann::json fingerprint;                  // of this run's encoders, where there is a cache to compare with
};

// Made by rank 0, the same everywhere. Error(usage) naming the differences when the cache was made in another way, or
// when Parquet files do not hold what the model takes. Collective.
EncodingPlan share_encoding_plan(const Group& world, const ProducerConfig& config, const PipelineFolder& pipeline,
                                 const Manifest& manifest, torch::Dtype dtype);

// "moments 8 x 32 x 32 and text 77 x 1024, read from DIR, the missing ones made and added": for the start-up table.
std::string describe(const EncodingPlan& plan);

// One object, since the parts refer to each other.
class ProducerParts {
 public:
  ProducerParts(const ProducerConfig& config, const PipelineFolder& pipeline, const DataPlan& data,
                const EncodingPlan& encoding, const Session& session);
  ProducerParts(const ProducerParts&) = delete;
  ProducerParts& operator=(const ProducerParts&) = delete;

  // The text state of the empty caption, f16 (77, C). Makes a cache ready that is to be added to: one rank calls it,
  // before any other opens the cache.
  torch::Tensor make_null_text();

  // Begins to read `stripes`, each from its cursor or from the start.
  StripeStream& start_stream(StreamOptions options, CachedValues values, const std::vector<std::uint32_t>& stripes,
                             const std::map<std::uint32_t, StripeCursor>& from = {});
  const Deal& deal() const { return deal_; }
  Encoder& encoder() { return *encoder_; }
  RejectedList& rejected() { return rejected_; }  // that of this rank, in the run's folder
  // The encoder behind the cache.
  CachedEncoder make_cached_encoder();

 private:
  std::unique_ptr<SampleSource> make_source_with_cache(CachedValues values) const;
  torch::Tensor encode_null_text() const;

  const ProducerConfig& config_;
  const PipelineFolder& pipeline_;
  const DataPlan& data_;
  const EncodingPlan& encoding_;
  const torch::Device device_;
  std::optional<ClipTokenizer> tokenizer_;  // these two only where something is encoded
  std::optional<Encoder> encoder_;
  Filter filter_;
  Deal deal_;
  Preparation preparation_;
  RejectedList rejected_;
  std::unique_ptr<SampleSource> source_;
  std::optional<StripeStream> stream_;
};

}  // namespace millrace
