#include "millrace/latents/latent_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"
#include "millrace/dataset/row.h"
#include "millrace/dataset/table_split_reader.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/half.h"
#include "millrace/io/net/urls.h"
#include "millrace/latents/latent_cache.h"

namespace millrace {

namespace {

// The log-variance at which the posterior's deviation vanishes: the lower end of its range.
constexpr float no_variance = -30;

struct LatentColumn {
  std::string name;
  bool holds_bytes = false;  // else lists
};

struct LatentColumns {
  LatentColumn image, text;
  std::vector<std::string> names() const { return {image.name, text.name}; }
};

std::size_t latent_count(const EncodingShape& shape) {
  return count_of(shape.moments) / 2;
}

// The column that `wanted` names, else the first of `usual` that the file has.
LatentColumn choose_column(const std::string& key, const std::optional<std::string>& wanted,
                           const std::vector<std::string>& usual, const std::vector<ParquetColumn>& schema,
                           const std::string& path) {
  const auto candidates = wanted ? std::vector{*wanted} : usual;
  for (const std::string& candidate : candidates) {
    const auto found = std::ranges::find(schema, candidate, &ParquetColumn::name);
    if (found == schema.end()) continue;
    return {found->name, found->holds == ColumnHolds::bytes || found->holds == ColumnHolds::text};
  }
  std::vector<std::string> names;
  for (const ParquetColumn& column : schema) names.push_back(column.name);
  throw Error(Exit::usage, fmt::format("{} has no column {} for {}", path, fmt::join(candidates, " or "), key),
              fmt::format("its columns are {}", fmt::join(names, ", ")));
}

LatentColumns choose_columns(const SourceConfig& source, const LatentTableOptions& options, const std::string& path) {
  const auto schema = parquet_schema(path);
  const int side = options.resolution;
  const std::vector<std::string> usual = {fmt::format("image_latents_{}", side), fmt::format("latents_{}_bytes", side),
                                          fmt::format("latents_{}", side)};
  const std::string columns = source.section + ".columns.";
  std::optional<std::string> caption;
  if (source.columns.caption) caption = source.columns.caption->values.front();
  return {choose_column(columns + "image", source.columns.image, usual, schema, path),
          choose_column(columns + "caption", caption, {"caption_embeddings", "caption_latents"}, schema, path)};
}

// `count` numbers as f32; nothing when it is another number of them. Bytes may also be those of f16.
std::optional<std::vector<float>> to_floats(const Cell& cell, std::size_t count, bool may_be_halves) {
  const auto* const bytes = std::get_if<std::string>(&cell);
  if (!bytes) return std::nullopt;
  std::vector<float> floats(count);
  if (bytes->size() == count * sizeof(float)) {
    std::memcpy(floats.data(), bytes->data(), bytes->size());
    return floats;
  }
  if (!may_be_halves || bytes->size() != count * sizeof(std::uint16_t)) return std::nullopt;
  std::vector<std::uint16_t> halves(count);
  std::memcpy(halves.data(), bytes->data(), bytes->size());
  std::transform(halves.begin(), halves.end(), floats.begin(), from_half);
  return floats;
}

bool is_empty(const Cell& cell) {
  return std::holds_alternative<std::monostate>(cell) || cell == Cell("");
}

class LatentTableReader final : public SplitReader {
 public:
  LatentTableReader(const Archive& archive, LatentColumns columns, const LatentTableOptions& options,
                    const Split& split, std::uint64_t first_row)
      : archive_(archive),
        columns_(std::move(columns)),
        options_(options),
        split_(archive, open_table(archive.path, columns_.names(), ParquetLists::floats), split, first_row) {}

  std::optional<RawRow> next() override {
    auto row = split_.next();
    if (!row) return std::nullopt;
    if (auto* rejected = std::get_if<Rejected>(&*row)) return std::move(*rejected);
    const auto& [number, cells, damage] = std::get<TableSplitReader::Row>(*row);
    return to_row(name_row(archive_, fmt::to_string(number)), cells[0], cells[1]);
  }

 private:
  RawRow to_row(SampleRef ref, const Cell& image, const Cell& caption) const {
    if (is_empty(image))
      return Rejected{std::move(ref), RejectReason::missing_image,
                      fmt::format("column {} is empty", columns_.image.name)};
    if (is_empty(caption))
      return Rejected{std::move(ref), RejectReason::missing_caption,
                      fmt::format("column {} is empty", columns_.text.name)};
    const auto latent = to_floats(image, latent_count(options_.shape), columns_.image.holds_bytes);
    const auto text = to_floats(caption, count_of(options_.shape.text), columns_.text.holds_bytes);
    if (!latent || !text)
      return Rejected{std::move(ref), RejectReason::decode_error,
                      fmt::format("column {} has another length", (latent ? columns_.text : columns_.image).name)};
    EncodedSample sample{std::move(ref), {to_moments(*latent), {}}};
    std::transform(text->begin(), text->end(), std::back_inserter(sample.encoding.text), to_half);
    for (const auto* values : {&sample.encoding.moments, &sample.encoding.text})
      if (!std::all_of(values->begin(), values->end(), is_finite_half))
        return Rejected{std::move(sample.ref), RejectReason::non_finite, "a number that half precision cannot hold"};
    return sample;
  }

  // Mean and log-variance of a distribution that is this latent, before the VAE's scaling.
  std::vector<std::uint16_t> to_moments(const std::vector<float>& scaled) const {
    const auto scaling = static_cast<float>(options_.scaling_factor), shift = static_cast<float>(options_.shift_factor);
    std::vector<std::uint16_t> moments(2 * scaled.size(), to_half(no_variance));
    std::transform(scaled.begin(), scaled.end(), moments.begin(),
                   [&](float value) { return to_half(value / scaling + shift); });
    return moments;
  }

  const Archive& archive_;
  const LatentColumns columns_;
  const LatentTableOptions& options_;
  TableSplitReader split_;
};

class LatentTableSource final : public SampleSource {
 public:
  LatentTableSource(const SourceConfig& source, const Manifest& manifest, const LatentTableOptions& options)
      : source_(source), manifest_(manifest), options_(options) {}

  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    const Archive& archive = manifest_.archives.at(split.archive);
    try {
      auto columns = choose_columns(source_, options_, archive.path);
      return std::make_unique<LatentTableReader>(archive, std::move(columns), options_, split, first_row);
    } catch (const Error& error) {
      const bool lacks_columns = error.exit() == Exit::usage;  // this file of many
      if (!is_damage(error) && !lacks_columns) throw;
      return make_broken_reader(archive, split, first_row, error.what());
    }
  }

 private:
  const SourceConfig source_;
  const Manifest& manifest_;
  const LatentTableOptions options_;
};

void check_length(const std::string& path, const LatentColumn& column, const Cell& cell,
                  const std::vector<std::int64_t>& shape) {
  if (is_empty(cell) || to_floats(cell, count_of(shape), column.holds_bytes)) return;
  const auto* bytes = std::get_if<std::string>(&cell);
  const auto found = !bytes               ? std::string("neither lists of floating-point numbers nor bytes")
                     : column.holds_bytes ? fmt::format("{} bytes a row", bytes->size())
                                          : fmt::format("{} numbers a row", bytes->size() / sizeof(float));
  throw Error(Exit::usage,
              fmt::format("{}: column {} holds {}; the model takes {} numbers", path, column.name, found,
                          fmt::join(shape, " x ")),
              "transform.resolution and model.pipeline have to be those that the latents were made with");
}

void check_first_row(const SourceConfig& source, const std::string& path, const LatentTableOptions& options) {
  const LatentColumns columns = choose_columns(source, options, path);
  const auto row = open_table(path, columns.names(), ParquetLists::floats)->next();
  if (!row) return;
  auto latent_shape = options.shape.moments;
  latent_shape[0] /= 2;
  check_length(path, columns.image, (*row)[0], latent_shape);
  check_length(path, columns.text, (*row)[1], options.shape.text);
}

}  // namespace

bool is_latent_parquet(const SourceConfig& source) {
  const std::string& path = source.path.front();
  if (is_kind(path, ArchiveKind::parquet) || (is_s3(path) && path.ends_with('/'))) return true;
  if (is_latent_cache(path)) return false;
  std::error_code error;
  const auto entries = list_folder(path, error);
  check_storage(error, path);
  return std::ranges::any_of(entries,
                             [](const auto& entry) { return is_kind(entry.path().string(), ArchiveKind::parquet); });
}

void check_latent_tables(const SourceConfig& source, const Manifest& manifest, const LatentTableOptions& options) {
  if (!source.filters.empty() || source.columns.key || source.columns.cls || source.idx_to_prompt)
    throw Error(
        Exit::usage,
        source.section + ": filters, idx_to_prompt, columns.key and columns.cls have no use with latents from Parquet",
        "filter before encoding; ids are the numbers of the rows");
  for (const Archive& archive : manifest.archives) {
    try {
      return check_first_row(source, archive.path, options);
    } catch (const Error& error) {
      if (error.exit() != Exit::io) throw;  // a broken file is the reader's to count
    }
  }
}

std::unique_ptr<SampleSource> make_latent_table_source(const SourceConfig& source, const Manifest& manifest,
                                                       const LatentTableOptions& options) {
  return std::make_unique<LatentTableSource>(source, manifest, options);
}

}  // namespace millrace
