#include <fmt/format.h>
#include <zlib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "archives.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/io/tar.h"
#include "millrace/io/tar_writer.h"

namespace millrace::storm {
namespace {

struct Row {
  std::string key;
  std::optional<std::string> image, caption;
  double score = 0;
  std::string reason;  // why it is rejected; empty = good
};

Image draw_image(Dice& dice) {
  Image image{dice.between(12, 24), dice.between(12, 24), {}};
  const int red = dice.below(256), green = dice.below(256), blue = dice.below(256);
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width; ++x)
      for (const int colour : {red + 9 * x, green + 7 * y, blue + 5 * (x ^ y)})
        image.pixels.push_back(static_cast<std::uint8_t>(colour));
  return image;
}

void spoil(Dice& dice, Row& row) {
  switch (dice.below(4)) {
    case 0:
      row.image->resize(row.image->size() - row.image->size() / 8);
      row.reason = "image";
      break;
    case 1:
      row.image = "no image at all";
      row.reason = "image";
      break;
    case 2:
      row.image.reset();
      row.reason = "missing_image";
      break;
    default:
      row.caption.reset();
      row.reason = "missing_caption";
  }
}

Row draw_row(Dice& dice, const DataSet& data, int number) {
  static const std::vector<std::string> words = {"a red circle", "two trees", "the sea at night", "", "a cat, asleep"};
  Row row;
  row.key = fmt::format("{:05d}", number);
  row.image = encode_jpeg(draw_image(dice), 90);
  row.caption = dice.of(words);
  row.score = 0.6 * dice.share();
  if (dice.chance(data.bad_share)) {
    spoil(dice, row);
  } else if (data.filtered && dice.chance(0.25)) {
    row.score = 0.8;
    row.reason = "filtered";
  }
  return row;
}

TarSample sample_of(const Row& row) {
  TarSample sample{.key = row.key, .fields = {}};
  if (row.image) sample.fields.push_back({"jpg", *row.image});
  sample.fields.push_back({"json", nlohmann::json{{"score", row.score}}.dump()});
  if (row.caption) sample.fields.push_back({"txt", *row.caption});
  return sample;
}

void write_tar(const fs::path& path, const std::vector<Row>& rows) {
  TarWriter tar(path);
  for (const Row& row : rows) tar.write(sample_of(row));
  tar.commit();
}

// In the middle of the last sample's first member, behind its header.
void cut_last_row(const fs::path& path) {
  std::uint64_t begin = 0;
  TarReader tar(path.string());
  while (const auto sample = tar.next()) begin = sample->begin;
  fs::resize_file(path, begin + 512 + 7);
}

void compress(const fs::path& path) {
  const auto bytes = read_file(path);
  const gzFile file = gzopen((path.string() + ".gz").c_str(), "wb");
  ensure(file && gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) > 0 && gzclose(file) == Z_OK,
         "gzip writes");
  fs::remove(path);
}

void write_parquet(const fs::path& path, const std::vector<Row>& rows) {
  using Type = ParquetField::Type;
  ParquetWriter table(path, {{"jpg", Type::bytes}, {"caption", Type::text}, {"score", Type::float64}}, 20);
  const auto cell = [](const std::optional<std::string>& text) { return text ? Cell(*text) : Cell(); };
  for (const Row& row : rows) table.write({cell(row.image), cell(row.caption), row.score});
  table.commit();
}

}  // namespace

int Truth::rows() const {
  int rows = static_cast<int>(good.size());
  for (const auto& [reason, count] : rejected) rows += count;
  return rows;
}

std::string reason_of_truth(const std::string& reason) {
  return reason == "decode_error" || reason == "truncated_image" || reason == "not_an_image" ? "image" : reason;
}

Truth write_archives(const Case& drawn, const fs::path& folder) {
  fs::create_directories(folder);
  Dice dice(drawn.seed + 0x9E3779B97F4A7C15u);
  Truth truth;
  const DataSet& data = drawn.data;
  for (std::size_t archive = 0; archive < data.rows.size(); ++archive) {
    std::vector<Row> rows;
    for (int i = 0; i < data.rows[archive]; ++i) rows.push_back(draw_row(dice, data, i));
    const bool cut = data.cut_short && archive + 1 == data.rows.size();
    if (cut) rows.back().reason = "archive_error";

    const auto name = fmt::format("part-{}", archive);
    if (data.archives == Archives::parquet) {
      write_parquet(folder / (name + ".parquet"), rows);
    } else {
      const auto path = folder / (name + ".tar");
      write_tar(path, rows);
      if (cut) cut_last_row(path);
      if (data.archives == Archives::tar_gz) compress(path);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto key = data.archives == Archives::parquet ? std::to_string(i) : rows[i].key;
      auto& id = truth.rows_of[name].emplace_back();
      if (rows[i].reason.empty()) {
        id = name + "/" + key;
        truth.good.insert(id);
      } else {
        ++truth.rejected[rows[i].reason];
      }
    }
  }
  return truth;
}

}  // namespace millrace::storm
