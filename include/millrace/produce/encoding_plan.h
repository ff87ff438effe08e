#pragma once
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/comm/group.h"
#include "millrace/dataset/manifest.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/latents/latent_table.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/produce/producer_config.h"

namespace millrace {

// What every rank knows about the encodings before the first one is made.
struct EncodingPlan {
  EncodingShape shape;                         // of the encodings that producers make or read
  std::int64_t text_width = 0;                 // C of the text embeddings, whoever makes them
  bool encodes = true;                         // false: data.train.type=latents, all encodings are read
  std::optional<std::filesystem::path> cache;  // read from, and if `encodes` added to; neither: Parquet files are read
  nlohmann::json fingerprint;                  // of this run's encoders, if there is a cache to compare with

  bool reads_tables() const { return !encodes && !cache; }
  bool adds_to_cache() const { return encodes && cache; }
};

// Rank 0 makes the plan, all ranks get it. Error(usage) naming the differences if the cache was made in another way;
// also if it holds what encode.text_on has no use for or latents of archives that have changed, or if Parquet files do
// not hold what the model takes. Collective.
EncodingPlan broadcast_encoding_plan(const Group& world, const ProducerConfig& config, const PipelineFolder& pipeline,
                                     const Manifest& manifest, torch::Dtype dtype);

// Prepares a cache that is to be added to; otherwise does nothing. One rank calls it, before any other opens the cache.
// Error(usage) naming the differences if another job has made the cache in another way meanwhile.
void begin_cache(const EncodingPlan& plan, const torch::Tensor& null_text);

// Removes what killed processes of this machine left half written in a cache that is to be added to; otherwise does
// nothing. One rank of each machine calls it: whether processes of other machines are still at work is not known.
void clear_leftovers(const EncodingPlan& plan);

// Error(usage) naming the differences if the cache was made in another way: another job may have begun it since the
// plan was made.
void check_cache(const EncodingPlan& plan);

// How encodings of this shape are read out of Parquet files.
LatentTableOptions latent_table_options(const ProducerConfig& config, const PipelineFolder& pipeline,
                                        const EncodingShape& shape);

// "moments 8 x 32 x 32 and text 77 x 1024, read from DIR, the missing ones made and added": for the start-up table.
std::string describe(const EncodingPlan& plan);

}  // namespace millrace
