#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "test_data.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const fs::path folder = test::data_dir() / "latents";

const json& golden() {
  static const json expected = json::parse(read_file(folder / "expected.json"));
  return expected;
}

LatentTableOptions tiny_options() {
  return {{{8, 2, 2}, {3, 2}}, 16, 0.18215, 0};
}

SourceConfig latents_of(const std::string& name) {
  SourceConfig source;
  source.type = SourceConfig::Type::latents;
  source.path = {(folder / (name + ".parquet")).string()};
  return source;
}

std::vector<RawRow> rows_of(const SourceConfig& config, const Split& split = {0, 0, 1}, std::uint64_t first_row = 0,
                            const LatentTableOptions& options = tiny_options()) {
  const auto manifest = make_manifest(config, false);
  const auto source = make_latent_table_source(config, manifest, options);
  const auto reader = source->open(split, first_row);
  std::vector<RawRow> rows;
  while (auto row = reader->next()) rows.push_back(std::move(*row));
  return rows;
}

Error error_of(const SourceConfig& config, const LatentTableOptions& options) {
  try {
    check_latent_tables(config, make_manifest(config, false), options);
  } catch (const Error& error) {
    return error;
  }
  return Error(Exit::done, "no error");
}

void expect_row(const RawRow& row, const json& expected, const std::string& id) {
  const auto& sample = std::get<EncodedSample>(row);
  EXPECT_EQ(sample.ref.id, id);
  EXPECT_EQ(json(sample.encoding.moments), expected["moments"]);
  EXPECT_EQ(json(sample.encoding.text), expected["text"]);
}

TEST(LatentTable, ReadsEveryWayToStoreATensor) {
  for (const char* name : {"nested", "doubles", "halves", "ray", "ragged", "fixed_shape", "bytes_f32", "bytes_f16"}) {
    SCOPED_TRACE(name);
    const bool half = std::string_view(name) == "halves" || std::string_view(name) == "bytes_f16";
    const json& expected = golden()[half ? "f16" : "f32"];
    EXPECT_EQ(error_of(latents_of(name), tiny_options()).exit(), Exit::done);
    const auto rows = rows_of(latents_of(name));
    ASSERT_EQ(rows.size(), expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i) expect_row(rows[i], expected[i], fmt::format("{}/{}", name, i));
  }
}

TEST(LatentTable, LanesAndLaterRowsAreTheSameRows) {
  const auto rows = rows_of(latents_of("nested"), {0, 1, 2}, 1);
  ASSERT_EQ(rows.size(), 1u);
  expect_row(rows[0], golden()["f32"][3], "nested/3");
}

// docs/numerics.md: the VAE's shift was subtracted before scaling.
TEST(LatentTable, ScalingAndShiftOfTheVaeAreTakenBack) {
  const test::TempDir scratch;
  const std::vector<float> ones(16, 1);
  const std::string bytes(reinterpret_cast<const char*>(ones.data()), 16 * sizeof(float));
  ParquetWriter writer(scratch / "shifted.parquet", {{"latents_16_bytes", ParquetField::Type::bytes},
                                                     {"caption_latents", ParquetField::Type::bytes}});
  writer.write({bytes, bytes.substr(0, 6 * sizeof(float))});
  writer.commit();
  SourceConfig source;
  source.type = SourceConfig::Type::latents;
  source.path = {(scratch / "shifted.parquet").string()};
  auto options = tiny_options();
  options.scaling_factor = 0.5;
  options.shift_factor = 0.25;
  const auto rows = rows_of(source, {0, 0, 1}, 0, options);
  ASSERT_EQ(rows.size(), 1u);
  std::vector<std::uint16_t> expected(16, 0x4080);             // 2.25 = 1 / 0.5 + 0.25
  expected.insert(expected.end(), 16, std::uint16_t{0xCF80});  // -30, log-variance of next to none
  EXPECT_EQ(std::get<EncodedSample>(rows[0]).encoding.moments, expected);
}

TEST(LatentTable, SpoiltRowsAreRejected) {
  const auto rows = rows_of(latents_of("spoilt"));
  ASSERT_EQ(rows.size(), golden()["spoilt"].size());
  expect_row(rows[0], golden()["f32"][0], "spoilt/0");
  for (std::size_t i = 1; i < rows.size(); ++i)
    EXPECT_EQ(to_string(std::get<Rejected>(rows[i]).reason), golden()["spoilt"][i]) << i;
}

TEST(LatentTable, AFileWithoutTheColumnIsABrokenArchive) {
  const test::TempDir scratch;
  fs::copy_file(folder / "nested.parquet", scratch / "a.parquet");
  ParquetWriter writer(scratch / "b.parquet", {{"caption", ParquetField::Type::text}});
  writer.write({"no latents"});
  writer.commit();
  SourceConfig source;
  source.type = SourceConfig::Type::latents;
  source.path = {scratch.path().string()};
  EXPECT_EQ(error_of(source, tiny_options()).exit(), Exit::done);  // the first file is as it should be
  const auto rows = rows_of(source, {1, 0, 1});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(std::get<Rejected>(rows[0]).reason, RejectReason::archive_error);
}

TEST(LatentTable, ErrorsNameFileAndColumn) {
  auto wide = tiny_options();
  wide.shape.moments = {8, 4, 4};
  EXPECT_EQ(error_of(latents_of("ray"), wide).exit(), Exit::usage);
  EXPECT_THAT(error_of(latents_of("ray"), wide).what(), HasSubstr("ray.parquet: column image_latents_16"));
  auto other_text = tiny_options();
  other_text.shape.text = {3, 4};
  EXPECT_THAT(error_of(latents_of("nested"), other_text).what(), HasSubstr("column caption_embeddings"));
  EXPECT_THAT(error_of(latents_of("nested"), other_text).what(), HasSubstr("holds 6 numbers a row"))
      << "not the bytes of twice as many halves";
  auto other_size = tiny_options();
  other_size.resolution = 512;
  EXPECT_THAT(error_of(latents_of("nested"), other_size).what(), HasSubstr("image_latents_512"));
  auto text_as_image = latents_of("nested");
  text_as_image.columns.image = "caption";
  EXPECT_THAT(error_of(text_as_image, tiny_options()).what(), HasSubstr("column caption holds"));
  auto filtered = latents_of("nested");
  filtered.filters["punsafe"] = "<0.1";
  EXPECT_EQ(error_of(filtered, tiny_options()).exit(), Exit::usage);
}

TEST(LatentTable, ACacheIsNoTable) {
  EXPECT_TRUE(is_latent_parquet(latents_of("nested")));
  SourceConfig source;
  source.path = {folder.string()};
  EXPECT_TRUE(is_latent_parquet(source));
  source.path = {"s3://bucket/latents/"};
  EXPECT_TRUE(is_latent_parquet(source));
  source.path = {(folder / "nowhere").string()};
  EXPECT_FALSE(is_latent_parquet(source));
}

}  // namespace
}  // namespace millrace
