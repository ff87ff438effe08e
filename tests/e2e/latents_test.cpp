// Latents from Parquet through the real binary: they train as the same latents in a cache do, bit for bit.
#include <gmock/gmock.h>

#include "e2e/program.h"
#include "e2e/weights.h"
#include "millrace/io/half.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"

namespace millrace::e2e {
namespace {

using testing::HasSubstr;
using Halves = std::vector<std::uint16_t>;

struct Encodings {
  CacheDescription description;
  std::vector<Encoding> rows;
};

std::string path_of(const std::string& name) {
  return (workshop() / name).string();
}

// The workshop's images as `preprocess` encodes them.
const Encodings& encodings() {
  static const Encodings made = [] {
    const auto outcome =
        shell(millrace + " preprocess run.dir=" + path_of("filled") +
              " run.device=cpu model.pipeline=" + path_of("tiny") + " data.train.path=" + path_of("shapes") +
              " transform.resolution=32 encode.batch_size=8 encode.cache=" + path_of("cache"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    Encodings all{read_cache_description(path_of("cache")), {}};
    for (const auto& entry : fs::recursive_directory_iterator(path_of("cache/rows"))) {
      if (entry.path().extension() != ".json") continue;
      const auto info = read_latent_file_info(entry.path());
      const LatentFile file(info, all.description.shape);
      for (std::size_t i = 0; i < info.rows.size(); ++i) all.rows.push_back(file.read(i).encoding);
    }
    return all;
  }();
  return made;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Halves mean_of(const Encoding& encoding) {
  return {encoding.moments.begin(),
          encoding.moments.begin() + static_cast<std::ptrdiff_t>(encoding.moments.size() / 2)};
}

// The means as one draw each, scaled; every `missing`-th row without one.
void write_table(const std::string& name, std::size_t missing) {
  const auto scaling =
      nlohmann::json::parse(read(workshop() / "tiny/vae/config.json")).at("scaling_factor").get<float>();
  ParquetWriter table(workshop() / name, {{"image_latents_32", ParquetField::Type::bytes},
                                          {"caption_embeddings", ParquetField::Type::bytes}});
  for (std::size_t i = 0; i < encodings().rows.size(); ++i) {
    std::vector<float> latent;
    for (const auto bits : mean_of(encodings().rows[i])) latent.push_back(from_half(bits) * scaling);
    const bool left_out = missing && i % missing == 0;
    table.write({left_out ? Cell() : Cell(bytes_of(latent)), Cell(bytes_of(encodings().rows[i].text))});
  }
  table.commit();
}

// The same as a cache of the archive `frozen`.
void write_cache(const std::string& name) {
  const auto rows = encodings().rows.size();
  const Archive archive{"frozen.parquet", "frozen", 0, true, rows, {}};
  write_cache_description(workshop() / name, encodings().description);
  LatentFileWriter file(workshop() / name, archive, encodings().description);
  for (std::size_t i = 0; i < rows; ++i) {
    Halves moments = mean_of(encodings().rows[i]);
    moments.resize(2 * moments.size(), to_half(-30));
    const auto id = "frozen/" + std::to_string(i);
    file.add({i, id, "", moments, encodings().rows[i].text});
  }
  file.publish();
  write_cache_manifest(workshop() / name, {{{archive, rows, false}}});
}

std::string train_on(const std::string& run, const std::string& path, const std::string& settings = "") {
  return train(run, "'duration=8 steps' 'record.steps=[1,8]' data.train.type=latents data.train.path=" + path_of(path) +
                        " " + settings);
}

// Of the workshop's images, as `train` encodes them.
std::string fill(const std::string& cache, const std::string& settings = "") {
  return millrace + " preprocess run.dir=" + path_of("filling-" + cache) +
         " run.device=cpu model.pipeline=" + path_of("tiny") + " data.train.path=" + path_of("shapes") +
         " transform.resolution=32 encode.batch_size=8 encode.cache=" + path_of(cache) + " " + settings;
}

void expect_exit(int code, const std::string& command, const std::string& text = "") {
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, code) << command << "\n" << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(text));
}

// The archives are the same, and so is the path.
TEST(LatentsInACache, MadeAnotherWayAreOtherData) {
  expect_exit(0, fill("remade"));
  expect_exit(0, train_on("of-remade", "remade"));
  fs::rename(path_of("remade"), path_of("remade-before"));
  fs::remove_all(path_of("filling-remade"));
  expect_exit(0, fill("remade", "transform.interpolation=bicubic"));
  expect_exit(2, train_on("of-remade", "remade", "'duration=10 steps'"),
              R"(data.train.path: the cache was made with transform.interpolation: "bilinear" -> "bicubic")");
  fs::remove_all(path_of("remade"));
  fs::rename(path_of("remade-before"), path_of("remade"));
  expect_exit(0, train_on("of-remade", "remade", "'duration=9 steps'"));
}

// What the run has encoded by itself until then.
TEST(LatentsInACache, GoOnWhereTheRunHasEncoded) {
  expect_exit(0, fill("same"));
  expect_exit(0, train("encoding", "'duration=8 steps'"));
  expect_exit(0, train("encoded", "'duration=4 steps'"));
  expect_exit(2, train_on("encoded", "same"), "data.train.type: ");
  expect_exit(0, train_on("encoded", "same", "checkpoint.allow_changes=true"));
  EXPECT_EQ(read(workshop() / "encoded/ids.jsonl"), read(workshop() / "encoding/ids.jsonl"));
  const auto weights = [](const std::string& run) {
    const auto out = path_of(run + "-pipeline");
    expect_exit(0, millrace + " export --run " + path_of(run) + " --out " + out + " weights=raw");
    return read(out + "/unet/diffusion_pytorch_model.safetensors");
  };
  EXPECT_EQ(weights("encoded"), weights("encoding"));
}

TEST(LatentsInParquet, TrainAsTheSameLatentsInACache) {
  write_table("frozen.parquet", 0);
  write_cache("frozen-cache");
  for (const auto& command : {train_on("table", "frozen.parquet"), train_on("cached", "frozen-cache")}) {
    const auto outcome = shell(command);
    ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.output;
  }
  EXPECT_EQ(read(workshop() / "table/ids.jsonl"), read(workshop() / "cached/ids.jsonl"));
  for (const char* step : {"step-00000001", "step-00000008"}) {
    const auto name = std::string("records/") + step + ".safetensors";
    const auto left = read_weights(workshop() / "table" / name), right = read_weights(workshop() / "cached" / name);
    ASSERT_TRUE(left.contains("latents") && left.contains("grad_norm"));
    EXPECT_EQ(left, right) << step;
  }
}

TEST(LatentsInParquet, RowsWithoutALatentAreCounted) {
  write_table("gaps.parquet", 16);
  const auto outcome = shell(train_on("gaps", "gaps.parquet", "'duration=20 steps'"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto ledger = nlohmann::json::parse(read(workshop() / "gaps/ledger.json"));
  EXPECT_EQ(ledger["rejected"]["missing_image"], 6);
}

TEST(LatentsInParquet, OfAnotherSizeThanTheModelEndTheRun) {
  write_table("sized.parquet", 0);
  const auto outcome =
      shell(train_on("sized", "sized.parquet", "transform.resolution=64 data.train.columns.image=image_latents_32"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("sized.parquet: column image_latents_32"));
}

TEST(LatentsInParquet, HoldTextEmbeddingsOnly) {
  write_table("embedded.parquet", 0);
  const auto outcome = shell(train_on("embedded", "embedded.parquet", "encode.text_on=trainer"));
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("encode.text_on=trainer: " + path_of("embedded.parquet")));
}

}  // namespace
}  // namespace millrace::e2e
