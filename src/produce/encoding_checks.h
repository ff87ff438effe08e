#pragma once
#include <torch/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/latents/encoding_shape.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/produce/producer_config.h"

// Reasons to refuse a plan of the encodings, as Error(usage), or to warn about it. `made_with`: the fingerprint of what
// a cache holds.
namespace millrace {

// Encodings that are read must hold what encode.text_on wants of captions.
void check_text_on(const std::string& path, bool has_tokens, EncodeConfig::TextOn text_on);

void check_fingerprint(const std::filesystem::path& cache, const nlohmann::json& made_with,
                       const nlohmann::json& present);

// Trainers make the empty caption's tokens themselves, so these must come from the tokenizer that made the others.
void check_tokenizer(const std::string& cache, const nlohmann::json& made_with, const ProducerConfig& config,
                     const PipelineFolder& pipeline);

// Latents must have the resolution that is trained at: with latents of 256 px by mistake, pictures and the exported
// folder would say 512.
void check_resolution(const std::string& cache, const EncodingShape& shape, const ProducerConfig& config,
                      const PipelineFolder& pipeline);

// A complete cache has its rows and captions already: another choice of them would have no effect.
void check_choice_of_rows(const std::string& cache, const nlohmann::json& made_with, const SourceConfig& source);

// Captions have more tokens than the text encoder has positions for; a warning where the tokenizer gives them another
// number elsewhere.
void check_positions(const PipelineFolder& pipeline);

// A caption that holds one of them ends the run, which may be days from now.
void warn_of_unknown_tokens(const ProducerConfig& config, const PipelineFolder& pipeline);

// Latents without encoders: the pipeline still says how they are scaled, so a foreign VAE deserves a word.
void warn_of_other_encoders(const nlohmann::json& made_with, const ProducerConfig& config,
                            const PipelineFolder& pipeline, torch::Dtype dtype);

// Warns of keys that have no effect, since they applied when the latents were made.
void warn_of_idle_keys(const ProducerConfig& config);

}  // namespace millrace
