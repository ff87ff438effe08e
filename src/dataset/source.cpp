#include "millrace/dataset/source.h"

#include <utility>

#include "millrace/core/error.h"
#include "synthetic_source.h"
#include "table_source.h"
#include "webdataset_source.h"

namespace millrace {

namespace {

class OneRowReader final : public SplitReader {
 public:
  explicit OneRowReader(std::optional<Rejected> row) : row_(std::move(row)) {}
  std::optional<RawRow> next() override {
    std::optional<RawRow> row;
    if (row_) row = std::move(*row_);
    row_.reset();
    return row;
  }

 private:
  std::optional<Rejected> row_;
};

std::optional<ClassPrompts> load_prompts(const SourceConfig& config) {
  if (config.type != SourceConfig::Type::class_labels || !config.needs_captions) return std::nullopt;
  if (!config.idx_to_prompt) {
    throw Error(Exit::usage, fmt::format("{0}.idx_to_prompt must be set for {0}.type=class", config.section),
                "a JSON file, class number -> caption");
  }
  return ClassPrompts(*config.idx_to_prompt, config.section);
}

}  // namespace

std::unique_ptr<SplitReader> make_one_row_reader(std::optional<Rejected> row) {
  return std::make_unique<OneRowReader>(std::move(row));
}

std::unique_ptr<SampleSource> make_image_source(const SourceConfig& config, const Manifest& manifest, int resolution,
                                                const std::string& index) {
  switch (config.type) {
    case SourceConfig::Type::webdataset:
    case SourceConfig::Type::parquet:
    case SourceConfig::Type::csv:
    case SourceConfig::Type::class_labels:
      break;
    case SourceConfig::Type::synthetic:
      return std::make_unique<SyntheticSource>(manifest, resolution);
    case SourceConfig::Type::latents:
      ensure(false, "latents are no images");
  }
  const bool tables = !manifest.archives.empty() && is_table(manifest.archives.front().path);
  if (tables) return std::make_unique<TableSource>(config, manifest, load_prompts(config));
  return std::make_unique<WebDatasetSource>(manifest, config, load_prompts(config), IndexStore(index));
}

}  // namespace millrace
