#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/dataset/data_config.h"
#include "millrace/encode/encoder.h"
#include "millrace/image/transform.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

// Everything that encodings depend on: digests of the networks' weights and settings and of the tokenizer's files,
// `transform`, `tokenizer`, `encode.dtype`, what chooses rows and captions (filters, columns, idx_to_prompt), and those
// keys of data.images that are not at their defaults (older caches know nothing of them). Tokens do not depend on the
// text encoder. Reads all weights once.
nlohmann::json make_fingerprint(const PipelineFolder& pipeline, const TransformConfig& transform,
                                const TokenizerConfig& tokenizer, const DataConfig& data, torch::Dtype dtype,
                                EncodeConfig::TextOn text_on);

// Digest of a network of the pipeline: names, shapes and values of its weights, however they are packed into files, and
// its settings but for those that change nothing about what it computes. Reads all its weights.
std::string network_digest(const PipelineFolder& pipeline, std::string_view component);

// The part of the fingerprint that token ids depend on.
nlohmann::json tokenizer_fingerprint(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer);

// The part of the fingerprint that chooses rows and captions: filters, columns and the digest of idx_to_prompt.
nlohmann::json source_fingerprint(const SourceConfig& source);

// "transform.resolution: 256 -> 512", one text per difference.
std::vector<std::string> fingerprint_differences(const nlohmann::json& before, const nlohmann::json& now);

}  // namespace millrace
