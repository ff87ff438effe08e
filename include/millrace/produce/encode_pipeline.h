#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "millrace/encode/cached_encoder.h"
#include "millrace/latents/cached_source.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sample_loader.h"
#include "millrace/loader/stripe_stream.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/produce/encoder_networks.h"
#include "millrace/produce/encoding_plan.h"
#include "millrace/produce/producer.h"
#include "millrace/produce/producer_config.h"

namespace millrace {

// Loads the encoders of a configuration; empty if nothing is encoded. Collective over `ranks`, which all encode.
EncoderNetworks load_encoders(const Group& ranks, const ProducerConfig& config, const PipelineFolder& pipeline,
                              const EncodingPlan& encoding, torch::Device device);

// From archives to encodings: loader, tokenizer, encoders and cache of one configuration. Used by producers of `train`,
// the ranks of `preprocess`, and for `data.validation`. One object, since the parts refer to each other.
class EncodePipeline {
 public:
  // All references must outlive the pipeline, and the pipeline its streams and encoders. `rank`: names this rank's list
  // of rejected rows in the run's folder. `networks`: as load_encoders gives them; if there are none and something is
  // encoded, this rank reads them by itself.
  EncodePipeline(const ProducerConfig& config, const PipelineFolder& pipeline, const DataPlan& data,
                 const EncodingPlan& encoding, torch::Device device, int rank, EncoderNetworks networks = {});
  EncodePipeline(const EncodePipeline&) = delete;
  EncodePipeline& operator=(const EncodePipeline&) = delete;

  // Empty if nothing is encoded.
  const EncoderNetworks& networks() const { return networks_; }
  // The text embeddings of the empty caption, f16 (77, C); undefined if trainers make them.
  torch::Tensor null_text();

  // Begins to read `stripes`, each from its cursor or from the start. One stream at a time.
  StripeStream start_stream(const StreamOptions& options, CachedValues values,
                            const std::vector<std::uint32_t>& stripes, const StripeCursors& from = {});
  // The encoders with their cache, for samples of `stripes` stripes.
  CachedEncoder make_encoder(CacheUse use, std::size_t stripes);
  RejectedList& rejected() { return *loader_.rejected(); }

  // Runs a producer (run_producer) on the stripes of `plan`, each from its cursor or from the start.
  void produce(ParcelSender& sender, ProducerPlan plan, const StreamOptions& options, const StripeCursors& from = {});

 private:
  std::unique_ptr<SampleSource> make_source_with_cache(CachedValues values) const;
  torch::Tensor encode_null_text() const;

  const ProducerConfig& config_;
  const PipelineFolder& pipeline_;
  const DataPlan& data_;
  const EncodingPlan& encoding_;
  const torch::Device device_;
  std::optional<ClipTokenizer> tokenizer_;  // these three only if something is encoded
  EncoderNetworks networks_;
  std::optional<Encoder> encoder_;
  SampleLoader loader_;
  std::unique_ptr<SampleSource> source_;
};

}  // namespace millrace
