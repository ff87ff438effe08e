#include "millrace/produce/encode_pipeline.h"

#include <cstring>

#include "millrace/core/run_files.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

// Latent files in work, each of at most `encode.rows_per_file` encodings on disk: one for every stripe, which is in one
// archive at a time, and a few more, since a batch may have rows of several small archives. A file that has to make
// room is published with the few rows that it has.
constexpr std::size_t open_files_beside_stripes = 8;

std::optional<ClipTokenizer> load_tokenizer(const ProducerConfig& config, const PipelineFolder& pipeline,
                                            bool encodes) {
  if (!encodes) return std::nullopt;
  return ClipTokenizer::load(pipeline.component("tokenizer"), config.tokenizer);
}

}  // namespace

EncoderNetworks load_encoders(const Group& ranks, const ProducerConfig& config, const PipelineFolder& pipeline,
                              const EncodingPlan& encoding, torch::Device device) {
  if (!encoding.encodes) return {};
  const bool with_text = !encoding.shape.has_tokens();
  return load_encoders(ranks, pipeline, with_text, device, parse_dtype(config.encode.dtype, device));
}

EncodePipeline::EncodePipeline(const ProducerConfig& config, const PipelineFolder& pipeline, const DataPlan& data,
                               const EncodingPlan& encoding, torch::Device device, int rank, EncoderNetworks networks)
    : config_(config),
      pipeline_(pipeline),
      data_(data),
      encoding_(encoding),
      device_(device),
      tokenizer_(load_tokenizer(config, pipeline, encoding.encodes)),
      networks_(std::move(networks)),
      loader_(config.data, config.transform, data,
              {.seed = config.run.seed,
               .tokenizer = tokenizer_ ? &*tokenizer_ : nullptr,
               .one_caption = config.encode.cache.has_value(),
               .rejected = std::filesystem::path(config.run.dir.value) / run_file::rejected,
               .rank = rank}) {
  if (!encoding.encodes) return;
  if (!networks_.vae) networks_ = load_encoders(Group(), config, pipeline, encoding, device_);
  const auto dtype = parse_dtype(config.encode.dtype, device_);
  encoder_.emplace(networks_.vae, networks_.text, device_, dtype, config.encode.batch_size);
}

torch::Tensor EncodePipeline::null_text() {
  if (encoding_.shape.has_tokens()) return {};
  if (encoding_.encodes) return encoder_->text().null_text(tokenizer_->encode(""));
  if (!encoding_.cache) return encode_null_text();
  const auto values = read_cache_description(*encoding_.cache).null_text;
  auto text = torch::empty(encoding_.shape.text, torch::kHalf);
  std::memcpy(text.data_ptr(), values.data(), text.nbytes());
  return text;
}

// By a text encoder that is let go at once: all other text embeddings are read. The shape is Encoder's, so are the
// bits.
torch::Tensor EncodePipeline::encode_null_text() const {
  const auto tokenizer = ClipTokenizer::load(pipeline_.component("tokenizer"), config_.tokenizer);
  const auto dtype = parse_dtype(config_.encode.dtype, device_);
  TextEncoder encoder(pipeline_.load_text_encoder(device_, dtype), device_, dtype, config_.encode.batch_size);
  return encoder.null_text(tokenizer.encode(""));
}

std::unique_ptr<SampleSource> EncodePipeline::make_source_with_cache(CachedValues values) const {
  if (encoding_.reads_tables())
    return make_latent_table_source(config_.data.train, data_.manifest,
                                    latent_table_options(config_, pipeline_, encoding_.shape));
  auto source = make_source(config_.data.train, data_.manifest, config_.transform.resolution, config_.data.index);
  if (!encoding_.adds_to_cache()) return source;
  return make_cached_source(*encoding_.cache, data_.manifest, std::move(source), values);
}

StripeStream EncodePipeline::start_stream(const StreamOptions& options, CachedValues values,
                                          const std::vector<std::uint32_t>& stripes, const StripeCursors& from) {
  source_ = make_source_with_cache(values);
  return loader_.start(*source_, stripes, options, from);
}

CachedEncoder EncodePipeline::make_encoder(CacheUse use, std::size_t stripes) {
  std::unique_ptr<CacheWriter> writer;
  if (encoding_.adds_to_cache()) {
    check_cache(encoding_);
    writer = std::make_unique<CacheWriter>(*encoding_.cache, data_.manifest, config_.encode.rows_per_file,
                                           stripes + open_files_beside_stripes);
  }
  return {encoder_ ? &*encoder_ : nullptr, std::move(writer), use, encoding_.shape, config_.encode.batch_size};
}

void EncodePipeline::produce(ParcelSender& sender, ProducerPlan plan, const StreamOptions& options,
                             const StripeCursors& from) {
  auto stream = start_stream(options, CachedValues::full, plan.stripes, from);
  auto encoder = make_encoder(CacheUse::beside, plan.stripes.size());
  plan.rejected = &rejected();
  run_producer(stream, encoder, sender, data_, plan);
}

}  // namespace millrace
