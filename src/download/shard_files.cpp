#include "shard_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "archive_columns.h"
#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/lists.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/io/tar.h"
#include "millrace/io/tar_writer.h"

namespace millrace {

namespace {

using Json = nlohmann::ordered_json;
using Type = ParquetField::Type;
using Format = DownloadConfig::Format;

constexpr std::size_t max_messages = 1000;             // different ones in a statistics file
constexpr std::uint64_t max_image_bytes = 2ull << 30;  // in a tar: more than any download.max_bytes

fs::path path_of(const DownloadConfig& config, std::uint64_t shard, const char* suffix) {
  return fs::path(config.out.value) / fmt::format("{:05}{}", shard, suffix);
}

// The cells of `outcome_columns`.
std::array<Cell, outcome_columns.size()> outcome_cells(const DownloadConfig& config, const Shard& shard,
                                                       std::size_t index) {
  const RowOutcome& outcome = shard.outcome(index);
  const StoredImage none;
  const StoredImage& image = outcome.image ? *outcome.image : none;
  const auto if_success = [&](Cell value) { return outcome.image ? std::move(value) : Cell(); };
  return {key_of(config, shard.number(), index),
          std::string(status_of(outcome)),
          outcome.failure ? Cell(outcome.failure->message()) : Cell(),
          if_success(std::int64_t{image.width}),
          if_success(std::int64_t{image.height}),
          if_success(std::int64_t{image.original_width}),
          if_success(std::int64_t{image.original_height}),
          image.exif.empty() ? Cell() : Cell(image.exif),
          if_success(image.sha256)};
}

const std::string& text_in(const Cell& cell) {
  static const std::string none;
  const auto* const text = std::get_if<std::string>(&cell);
  return text ? *text : none;
}

// A further column's value for the .json: a number is one, also in a column of text, whose table has it as it is
// written.
Json json_of_other(const Cell& cell, const ListSlice& slice) {
  return to_json(slice.numbers_are_text ? number_or_text(cell) : cell);
}

std::string describe_sample(const DownloadConfig& config, const Shard& shard, std::size_t index) {
  const ListSlice& slice = shard.slice();
  const ListRow& row = shard.row(index);
  Json json = Json::object();
  for (std::size_t i = 0; i < slice.other_names.size(); ++i)
    json[slice.other_names[i]] = json_of_other(row.others[i], slice);
  if (slice.has_captions)
    json[caption_column] = !row.captions.empty() ? to_json(JsonText{row.captions})
                           : row.caption         ? Json(*row.caption)
                                                 : Json();
  json[url_column] = row.url;
  const auto cells = outcome_cells(config, shard, index);
  for (std::size_t i = 0; i < cells.size(); ++i) json[outcome_columns[i].name] = to_json(cells[i]);
  return json.dump(4, ' ', /*ensure_ascii=*/true);
}

// What read() gives. Its errors mean that the archive is damaged, unless it is storage that is away.
template <class Read>
auto read_old(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const auto* const access = dynamic_cast<const AccessError*>(&error);
    const bool is_gone = access && access->why() == "ENOENT";
    if (!is_gone && !is_damage(error)) throw;
    throw DamagedArchive(Exit::usage, error.what(), "delete it with its _stats.json, and it is made again");
  }
}

// The images of a finished archive, which lie in the order of its rows.
class OldImages {
 public:
  OldImages(const DownloadConfig& config, std::uint64_t shard) : config_(config), shard_(shard) {}

  struct OldImage {
    std::string type, bytes;
  };
  // That of a row behind those asked for before.
  OldImage take(std::size_t index) {
    return read_old([&] {
      const std::string key = key_of(config_, shard_, index);
      auto image = config_.format == Format::parquet ? find_in_table(key) : find_in_tar(key);
      if (!image) fail(Exit::io, "{} lacks the image of row {}", path().string(), index);
      return std::move(*image);
    });
  }

 private:
  fs::path path() const { return path_of(config_, shard_, config_.format == Format::parquet ? ".parquet" : ".tar"); }

  std::optional<OldImage> find_in_table(const std::string& key) {
    if (!table_) table_.emplace(path(), std::vector<std::string>{"key", image_column});
    while (auto cells = table_->next()) {
      auto* const bytes = std::get_if<std::string>(&cells->at(1));
      if (bytes && text_in(cells->at(0)) == key) return OldImage{"jpg", std::move(*bytes)};
    }
    return std::nullopt;
  }

  std::optional<OldImage> find_in_tar(const std::string& key) {
    if (!tar_) tar_.emplace(path().string(), TarOptions{{"jpg", "png", "webp"}, max_image_bytes});
    while (auto sample = tar_->next()) {
      if (sample->key != key || sample->oversized) continue;
      for (auto& [field, bytes] : sample->fields)
        if (field == "jpg" || field == "png" || field == "webp") return OldImage{field, std::move(bytes)};
    }
    if (tar_->error()) fail(Exit::io, "{}", tar_->error()->message);
    return std::nullopt;
  }

  const DownloadConfig& config_;
  const std::uint64_t shard_;
  std::optional<ParquetReader> table_;
  std::optional<TarReader> tar_;
};

void write_tar(const DownloadConfig& config, const Shard& shard) {
  OldImages old(config, shard.number());
  TarWriter tar(path_of(config, shard.number(), ".tar"));
  for (std::size_t i = 0; i < shard.rows(); ++i) {
    const RowOutcome& outcome = shard.outcome(i);
    if (!outcome.image) continue;
    TarSample sample;
    sample.key = key_of(config, shard.number(), i);
    auto [type, bytes] = outcome.is_old ? old.take(i) : OldImages::OldImage{outcome.image->type, shard.image_bytes(i)};
    sample.fields = {{std::move(type), std::move(bytes)}, {"json", describe_sample(config, shard, i)}};
    if (shard.slice().has_captions) sample.fields.emplace_back("txt", shard.row(i).caption.value_or(""));
    tar.write(sample);
  }
  tar.commit();
}

Cell as_type(const Cell& cell, Type type) {
  const bool is_text = std::holds_alternative<std::string>(cell) || std::holds_alternative<JsonText>(cell);
  if (type != Type::text || is_text || std::holds_alternative<std::monostate>(cell)) return cell;
  return to_json(cell).dump();
}

std::vector<ParquetField> fields_of(const DownloadConfig& config, const Shard& shard) {
  const ListSlice& slice = shard.slice();
  std::vector<ParquetField> fields;
  for (std::size_t i = 0; i < slice.other_names.size(); ++i)
    fields.push_back({slice.other_names[i], slice.other_types[i]});
  if (slice.has_captions) fields.push_back({caption_column, Type::text});
  fields.push_back({url_column, Type::text});
  for (const OutcomeColumn& column : outcome_columns) fields.push_back({column.name, column.type});
  if (config.format == Format::parquet) fields.push_back({image_column, Type::bytes});
  return fields;
}

void write_table(const DownloadConfig& config, const Shard& shard) {
  const std::vector<ParquetField> fields = fields_of(config, shard);
  // Few images to a row group, so that readers need little memory.
  const std::size_t group_rows = config.format == Format::parquet ? 100 : 10'000;
  OldImages old(config, shard.number());
  ParquetWriter table(path_of(config, shard.number(), ".parquet"), fields, group_rows);
  for (std::size_t i = 0; i < shard.rows(); ++i) {
    const ListRow& row = shard.row(i);
    std::vector<Cell> cells;
    for (std::size_t column = 0; column < row.others.size(); ++column)
      cells.push_back(as_type(row.others[column], fields[column].type));
    if (shard.slice().has_captions) cells.push_back(row.caption ? Cell(*row.caption) : Cell());
    cells.emplace_back(row.url);
    for (Cell& cell : outcome_cells(config, shard, i)) cells.push_back(std::move(cell));
    if (config.format == Format::parquet) {
      const RowOutcome& outcome = shard.outcome(i);
      cells.push_back(!outcome.image ? Cell() : outcome.is_old ? Cell(old.take(i).bytes) : Cell(shard.image_bytes(i)));
    }
    table.write(cells);
  }
  table.commit();
}

// Whether no row of a finished archive has won an image.
bool may_keep_images(const Shard& shard) {
  bool has_old = false;
  for (std::size_t i = 0; i < shard.rows(); ++i) {
    if (shard.outcome(i).image && !shard.outcome(i).is_old) return false;
    has_old |= shard.outcome(i).is_old;
  }
  return has_old;
}

double seconds_of(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

void write_stats(const DownloadConfig& config, const Shard& shard) {
  const ShardCounts counts = count(shard);
  const auto now = std::chrono::system_clock::now();
  Json messages = Json::object();
  for (const auto& [message, times] : counts.messages) {
    const bool has_room = messages.size() < max_messages || messages.contains(message);
    Json& total = messages[has_room ? message : "other"];
    total = total.is_null() ? times : total.get<std::int64_t>() + times;
  }
  const Json stats = {{"count", counts.rows},
                      {"successes", counts.successes},
                      {"failed_to_download", counts.failed_to_download},
                      {"failed_to_resize", counts.failed_to_resize},
                      {"duration", seconds_of(now) - seconds_of(shard.started())},
                      {"start_time", seconds_of(shard.started())},
                      {"end_time", seconds_of(now)},
                      {"status_dict", messages}};
  write_file_atomically(path_of(config, shard.number(), "_stats.json"), dump_any(stats, 4) + "\n");
}

int number_in(const Cell& cell) {
  const auto* const number = std::get_if<std::int64_t>(&cell);
  return number ? static_cast<int>(*number) : 0;
}

// Rows of a finished shard's table, without the images.
struct OldRow {
  std::string url, error;
  StoredImage image;
  bool success;
};

std::vector<OldRow> read_table(const fs::path& path) {
  ParquetReader table(path, {"url", "status", "error_message", "width", "height", "original_width", "original_height",
                             "sha256", "exif"});
  std::vector<OldRow> rows;
  while (const auto cells = table.next()) {
    const auto& c = *cells;
    OldRow row{text_in(c[0]), text_in(c[2]), {}, text_in(c[1]) == "success"};
    row.image.width = number_in(c[3]);
    row.image.height = number_in(c[4]);
    row.image.original_width = number_in(c[5]);
    row.image.original_height = number_in(c[6]);
    row.image.sha256 = text_in(c[7]);
    row.image.exif = text_in(c[8]);
    rows.push_back(std::move(row));
  }
  return rows;
}

void check_rows(const fs::path& path, const std::vector<OldRow>& old_rows, const Shard& shard) {
  bool same = old_rows.size() == shard.rows();
  for (std::size_t i = 0; same && i < old_rows.size(); ++i) same = old_rows[i].url == shard.row(i).url;
  if (!same)
    throw Error(Exit::io, fmt::format("{} was made from other lists", path.string()), "choose another download.out");
}

// NOTE [Retries that were killed]: a retry replaces tar, table and statistics one by one. Where it was killed in
// between, the statistics are older than what they are about, and the tar may hold images of rows that the table calls
// failed: what the tar holds counts. Copies that did not keep their times look the same, and are read once more.
bool was_killed(const DownloadConfig& config, std::uint64_t shard) {
  const auto written = [&](const char* suffix) {
    std::error_code none;  // a file that is missing is the oldest
    return fs::last_write_time(path_of(config, shard, suffix), none);
  };
  return std::max(written(".tar"), written(".parquet")) > written("_stats.json");
}

// What the json member of a sample tells.
StoredImage described_image(const fs::path& path, const TarSample& sample) {
  const auto member =
      std::find_if(sample.fields.begin(), sample.fields.end(), [](const auto& field) { return field.first == "json"; });
  try {
    const Json json = Json::parse(member == sample.fields.end() ? "" : member->second);
    StoredImage image;
    json.at("width").get_to(image.width);
    json.at("height").get_to(image.height);
    json.at("original_width").get_to(image.original_width);
    json.at("original_height").get_to(image.original_height);
    json.at("sha256").get_to(image.sha256);
    if (!json.at("exif").is_null()) json.at("exif").get_to(image.exif);
    return image;
  } catch (const Json::exception& error) {
    fail(Exit::io, "{}: {}", path.string(), error.what());
  }
}

// Returns whether the tar has all that the table tells of: no retry takes anything away.
bool add_images_of_tar(const DownloadConfig& config, std::uint64_t shard, std::vector<OldRow>& rows) {
  bool is_whole = true;
  const fs::path path = path_of(config, shard, ".tar");
  TarReader tar(path.string(), TarOptions{{"json"}, max_image_bytes});
  auto sample = tar.next();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string key = key_of(config, shard, i);
    while (sample && sample->key < key) sample = tar.next();
    if (tar.error()) fail(Exit::io, "{}", tar.error()->message);
    const bool has_image = sample && sample->key == key;
    if (rows[i].success && !has_image) is_whole = false;
    if (!rows[i].success && has_image) rows[i] = {rows[i].url, {}, described_image(path, *sample), true};
  }
  return is_whole;
}

void take_over(Shard& shard, std::vector<OldRow> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].success) {
      shard.keep(i, std::move(rows[i].image));
    } else {
      shard.store(i, Failure::from_message(rows[i].error));
    }
  }
}

}  // namespace

std::string key_of(const DownloadConfig& config, std::uint64_t shard, std::size_t index) {
  int digits = 0;
  std::uint64_t keys = 1;
  for (; keys < config.rows_per_file; keys *= 10) ++digits;
  return fmt::format("{:0{}}", shard * keys + index, digits + 5);
}

bool is_finished(const DownloadConfig& config, std::uint64_t shard) {
  return fs::exists(path_of(config, shard, "_stats.json"));
}

bool write_shard(const DownloadConfig& config, const Shard& shard) {
  const bool keeps_images = may_keep_images(shard);
  if (keeps_images && config.format == Format::parquet) return false;
  if (!keeps_images && config.format == Format::webdataset) write_tar(config, shard);
  write_table(config, shard);
  write_stats(config, shard);
  return true;
}

std::vector<std::size_t> load_for_retry(const DownloadConfig& config, Shard& shard) {
  const fs::path path = path_of(config, shard.number(), ".parquet");
  const bool has_tar = config.format == Format::webdataset;
  bool is_to_be_mended = was_killed(config, shard.number());
  std::vector<OldRow> old_rows = read_old([&] { return read_table(path); });
  check_rows(path, old_rows, shard);
  // Not a tar that somebody has taken samples out of: it stays as it is while nothing is to be added.
  if (is_to_be_mended && has_tar)
    is_to_be_mended = read_old([&] { return add_images_of_tar(config, shard.number(), old_rows); });
  std::vector<std::size_t> retryable;
  for (std::size_t i = 0; i < old_rows.size(); ++i)
    if (!old_rows[i].success && is_retryable(Failure::from_message(old_rows[i].error))) retryable.push_back(i);
  if (retryable.empty() && !is_to_be_mended) return retryable;

  take_over(shard, std::move(old_rows));
  if (is_to_be_mended && has_tar) write_table(config, shard);
  if (is_to_be_mended) write_stats(config, shard);
  return retryable;
}

}  // namespace millrace
