#pragma once
#include <memory>

#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/source.h"
#include "millrace/latents/encoding_shape.h"

// Parquet files of finished encodings, as the Ray pipelines for Stable Diffusion write them: one latent a row, drawn
// once and scaled, and the embeddings of its caption (docs/formats.md, "Latents in Parquet").
namespace millrace {

struct LatentTableOptions {
  EncodingShape shape;                          // what the model takes: moments (2 C, h, w), text (77, D)
  int resolution = 256;                         // of the images: part of the usual column's name
  double scaling_factor = 1, shift_factor = 0;  // of the VAE: the files hold (latent - shift) x scaling
};

// Whether the path names Parquet files, not a latent cache.
bool is_latent_parquet(const SourceConfig& source);

// Looks at the first row that can be read. Error(usage) naming file and column when columns are missing or rows are not
// of the model's shape, or when `source` asks for what such files cannot give.
void check_latent_tables(const SourceConfig& source, const Manifest& manifest, const LatentTableOptions& options);

// Rows as encodings whose distribution is their latent alone. Null, of another length or not finite: Rejected.
// `manifest` must outlive the source.
std::unique_ptr<SampleSource> make_latent_table_source(const SourceConfig& source, const Manifest& manifest,
                                                       const LatentTableOptions& options);

}  // namespace millrace
