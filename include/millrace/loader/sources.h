#pragma once
#include <memory>
#include <string>

#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/source.h"

// Every type of `data.train` but Parquet files of latents.
namespace millrace {

// list_archives(), or the archives of the latent cache that `source` names.
Manifest make_manifest(const SourceConfig& source, bool allow_pipes);

// The source that `config.type` names; `manifest` must outlive it. `resolution` is the side of synthetic images,
// `index` = data.index, where the indices of tars are kept. Error(io) when the captions of classes cannot be read.
// (Parquet files of latents need the model's shape: make_latent_table_source.)
std::unique_ptr<SampleSource> make_source(const SourceConfig& config, const Manifest& manifest, int resolution,
                                          const std::string& index = "never");

}  // namespace millrace
