#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "cached_archive.h"
#include "core/temp_dir.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/encode/cached_encoder.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/models/initialize.h"
#include "millrace/models/presets.h"
#include "samples.h"
#include "test_data.h"

namespace millrace {
namespace {

constexpr int cache_batch = 4;

class CacheTest : public testing::Test {
 protected:
  CacheTest() {
    const auto configs = preset_configs(Preset::tiny);
    encoder.emplace(make_vae(configs.vae, 1), make_text_encoder(configs.text_encoder, 1, configs.token_embedding_std),
                    torch::kCPU, torch::kFloat32, cache_batch);
    const auto probe = encoder->encode(std::vector{test::noise_sample(0, 32)});
    shape = {probe.moments.sizes().slice(1).vec(), probe.text.sizes().slice(1).vec()};
    std::string pattern = fs::temp_directory_path() / "millrace-encode-XXXXXX";
    folder = ::mkdtemp(pattern.data());
    write_cache_description(
        folder, {{{"made_with", "tiny"}}, shape, std::vector<std::uint16_t>(shape.text[0] * shape.text[1])});
    for (const char* name : {"a", "b", "c"}) {
      Archive archive;
      archive.path = archive.name = name;
      manifest.archives.push_back(archive);
    }
  }
  ~CacheTest() override { fs::remove_all(folder); }

  static TransformedSample sample(std::uint32_t archive, std::uint64_t row) {
    auto sample = test::noise_sample(static_cast<int>(100 * archive + row), 32);
    sample.ref.archive = archive;
    sample.ref.row = row;
    sample.caption = "caption " + std::to_string(row);
    return sample;
  }
  static std::vector<std::uint16_t> bits(const torch::Tensor& values) {
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(values.numel()));
    std::memcpy(bits.data(), values.contiguous().data_ptr(), 2 * bits.size());
    return bits;
  }
  CachedEncoder writing(int rows_per_file, std::size_t max_open = 8) {
    return {&*encoder, std::make_unique<CacheWriter>(folder, manifest, rows_per_file, max_open), CacheUse::beside,
            shape, cache_batch};
  }
  static CheckedBatch encode(CachedEncoder& encoder, std::vector<TransformedSample> samples) {
    return encoder.collect(encoder.start(std::move(samples)));
  }
  std::size_t files(const char* archive) {
    std::error_code none;
    std::size_t count = 0;
    for (const auto& entry : fs::directory_iterator(latent_folder(folder, archive), none))
      count += entry.path().extension() == ".json";
    return count;
  }

  std::optional<Encoder> encoder;
  EncodingShape shape;
  fs::path folder;
  Manifest manifest;
};

TEST_F(CacheTest, CachedAndFreshSamplesKeepTheirPlaces) {
  const auto expected = encoder->encode(std::vector{sample(0, 0), sample(0, 1), sample(0, 2), sample(0, 3)});
  std::vector<TransformedSample> samples;
  for (std::uint64_t row = 0; row < 4; ++row) {
    samples.push_back(sample(0, row));
    if (row % 2) continue;
    const auto number = static_cast<std::int64_t>(row);
    samples.back().encoding = Encoding{bits(expected.moments[number]), bits(expected.text[number])};
    samples.back().image = {};
  }
  CachedEncoder mixed(&*encoder, nullptr, CacheUse::beside, shape, cache_batch);
  const auto batch = encode(mixed, samples).batch;
  EXPECT_TRUE(torch::equal(batch.moments, expected.moments));
  EXPECT_TRUE(torch::equal(batch.text, expected.text));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(batch.refs[i].row, static_cast<std::uint64_t>(i));

  CachedEncoder without(nullptr, nullptr, CacheUse::beside, shape, cache_batch);
  EXPECT_TRUE(torch::equal(encode(without, {samples[0], samples[2]}).batch.moments,
                           expected.moments.index({torch::indexing::Slice(0, 4, 2)})));
  EXPECT_THROW(encode(without, {sample(0, 1)}), Error);
}

TEST_F(CacheTest, WhatIsEncodedCanBeReadBackBitForBit) {
  auto encoder = writing(100);
  const auto batch = encode(encoder, {sample(0, 7), sample(1, 3), sample(0, 2), sample(2, 0)}).batch;
  EXPECT_EQ(files("a"), 0u) << "nothing counts before it is published";
  encoder.finish();
  const CachedArchive cached(folder, manifest.archives[0], shape);
  CachedArchive::Opened opened;
  for (const auto& [row, place] : {std::pair{7u, 0}, std::pair{2u, 2}}) {
    const auto read = cached.load(cached.find(row).front(), opened);
    EXPECT_EQ(read.ref.id, sample(0, row).ref.id);
    EXPECT_EQ(read.encoding.moments, bits(batch.moments[place]));
    EXPECT_EQ(read.encoding.text, bits(batch.text[place]));
  }
  EXPECT_TRUE(cached.find(3).empty());
}

// encode.text_on=trainer
TEST_F(CacheTest, TokensTakeTheWayOfTextEmbeddings) {
  Encoder without_text(make_vae(preset_configs(Preset::tiny).vae, 1), CLIPTextModel(nullptr), torch::kCPU,
                       torch::kFloat32, cache_batch);
  const EncodingShape with_tokens{shape.moments, {token_count}};
  const auto cache = folder / "of-tokens";
  write_cache_description(cache, {{{"made_with", "tiny"}}, with_tokens, {}});
  CachedEncoder writing(&without_text, std::make_unique<CacheWriter>(cache, manifest, 100, 8), CacheUse::beside,
                        with_tokens, cache_batch);
  const auto batch = encode(writing, {sample(0, 7), sample(0, 2), sample(0, 3)}).batch;
  EXPECT_EQ(batch.text.sizes(), at::IntArrayRef({3, token_count}));
  writing.finish();

  const CachedArchive cached(cache, manifest.archives[0], with_tokens);
  CachedArchive::Opened opened;
  auto known = sample(0, 7);
  known.encoding = cached.load(cached.find(7).front(), opened).encoding;
  EXPECT_EQ(known.encoding->tokens, known.tokens);
  EXPECT_TRUE(known.encoding->text.empty());
  known.image = {};
  CachedEncoder mixed(&without_text, nullptr, CacheUse::beside, with_tokens, cache_batch);
  const auto again = encode(mixed, {known, sample(0, 2), sample(0, 3)}).batch;
  EXPECT_TRUE(torch::equal(again.moments, batch.moments));
  EXPECT_TRUE(torch::equal(again.text, batch.text));
}

TEST_F(CacheTest, FilesEndAtTheirSizeAndWhenManyArchivesAreOpen) {
  auto encoder = writing(2, 2);
  encode(encoder, {sample(0, 0), sample(1, 0), sample(0, 1), sample(0, 2)});
  EXPECT_EQ(files("a"), 1u) << "two rows make a file";
  encode(encoder, {sample(2, 0)});
  EXPECT_EQ(files("b"), 1u) << "the one that waited longest goes";
  EXPECT_EQ(files("a") + files("c"), 1u);
  encoder.finish();
  EXPECT_EQ(files("a"), 2u);
  EXPECT_EQ(files("c"), 1u);
}

TEST_F(CacheTest, FilesOfArchivesThatAreBehindArePublished) {
  auto encoder = writing(100);
  encode(encoder, {sample(0, 0), sample(1, 0), sample(2, 0)});
  encoder.finish_all_but({1, 7});
  EXPECT_EQ(files("a"), 1u);
  EXPECT_EQ(files("b"), 0u);
  EXPECT_EQ(files("c"), 1u);
  encode(encoder, {sample(1, 1)});
  encoder.finish();
  EXPECT_EQ(files("b"), 1u) << "it stayed open";
}

// Of 512 stripes: the files that are written, the archives, and the files that are read.
TEST_F(CacheTest, AsManyFilesMayBeOpenAsItTakes) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit usual = before;
  usual.rlim_cur = std::min<rlim_t>(before.rlim_max, 1024);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  const CacheWriter writer(folder, manifest, 100, /*max_open=*/520);
  rlimit now{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_GE(now.rlim_cur, std::min<rlim_t>(before.rlim_max, 3 * 520));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(CacheTest, RejectedRowsAreRememberedUnlessTheyMayFareBetterAnotherTime) {
  auto encoder = writing(100);
  encode(encoder, {sample(0, 0)});
  encoder.reject({{0, 1, RejectReason::truncated_image},
                  {0, 2, RejectReason::filtered},
                  {0, 3, RejectReason::missing_image},
                  {0, 4, RejectReason::archive_error},
                  {1, 0, RejectReason::too_small}});
  encoder.finish();
  const CachedArchive a(folder, manifest.archives[0], shape), b(folder, manifest.archives[1], shape);
  EXPECT_EQ(a.find(1).front().reason(), RejectReason::truncated_image);
  EXPECT_EQ(a.find(2).front().reason(), RejectReason::filtered);
  EXPECT_TRUE(a.find(3).empty()) << "the address of a list may answer again";
  EXPECT_TRUE(a.find(4).empty());
  EXPECT_EQ(b.find(0).front().reason(), RejectReason::too_small);
  CachedEncoder(nullptr, nullptr, CacheUse::beside, shape, cache_batch)
      .reject({{0, 1, RejectReason::filtered}});  // nothing to write to
}

TEST_F(CacheTest, RowsOfSeveralVisitsAreKeptOnceAndFoundByTheNext) {
  auto encoder = writing(100);
  const auto visit = [&](std::uint32_t number) {
    auto first = sample(0, 0), second = sample(0, 1);
    first.ref.epoch = second.ref.epoch = number;
    encode(encoder, {first, second});
  };
  visit(0);
  EXPECT_EQ(files("a"), 0u);
  visit(1);
  EXPECT_EQ(files("a"), 1u) << "the second visit shall not wait for a full file";
  visit(1);
  encoder.finish();
  EXPECT_EQ(files("a"), 1u) << "nothing was new";
}

TEST_F(CacheTest, ACacheThatCannotBeWrittenDoesNotStopTheRun) {
  std::ofstream(folder / "rows") << "in the way";
  auto encoder = writing(1);
  const auto batch = encode(encoder, {sample(0, 0)}).batch;
  EXPECT_EQ(batch.refs.size(), 1u);
  EXPECT_EQ(encode(encoder, {sample(0, 1)}).batch.refs.size(), 1u);
  encoder.finish();
}

// One part of a pipeline after the other becomes another.
TEST(Fingerprint, TellsWhichPartOfThePipelineIsAnother) {
  const test::TempDir folder;
  const auto pipeline = folder / "pipeline";
  fs::copy(test::data_dir() / "folder/pipeline", pipeline, fs::copy_options::recursive);
  const auto fingerprint = [&](torch::Dtype dtype) {
    return make_fingerprint(PipelineFolder::open(pipeline), TransformConfig{}, TokenizerConfig{}, DataConfig{}, dtype,
                            EncodeConfig::TextOn::producer);
  };
  auto before = fingerprint(torch::kFloat32);
  const auto expect_another = [&](const std::string& part) {
    const auto now = fingerprint(torch::kFloat32);
    EXPECT_THAT(fingerprint_differences(before, now), testing::ElementsAre(testing::StartsWith(part + ": ")));
    before = now;
  };
  for (const std::string network : {"vae", "text_encoder"}) {
    const auto file = pipeline / network / (std::string(weights_stem(network)) + ".safetensors");
    auto bytes = read_file(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file_atomically(file, bytes);
    expect_another("model.pipeline." + network);
  }
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json"}) {
    SCOPED_TRACE(name);
    std::ofstream(pipeline / "tokenizer" / name, std::ios::app) << "\n";
    expect_another("model.pipeline.tokenizer");
  }
  EXPECT_THAT(fingerprint_differences(before, fingerprint(torch::kBFloat16)),
              testing::ElementsAre("encode.dtype: \"float32\" -> \"bfloat16\""));
}

// tokenizer.mode=auto is another word for hf.
TEST(TokenizerFingerprint, IsOfWhatIsDoneNotOfTheWord) {
  const auto folder = PipelineFolder::open(test::data_dir() / "folder/pipeline");
  const auto of_mode = [&](const std::string& word) {
    TokenizerConfig tokenizer;
    config::load_text(tokenizer, "mode: " + word, "here").throw_if_problems();
    return tokenizer_fingerprint(folder, tokenizer);
  };
  EXPECT_EQ(of_mode("hf"), of_mode("auto"));
  EXPECT_EQ(of_mode("auto"), tokenizer_fingerprint(folder, {}));
  EXPECT_NE(of_mode("open_clip"), of_mode("auto"));
}

// A run on a cache alone says which captions of classes it means, too.
TEST(SourceFingerprint, TellsThePromptsOfClassesAndOfLatentsMadeOfThem) {
  const test::TempDir folder;
  const auto file = folder.write("prompts.json", R"({"0": "a tench"})").string();
  using enum SourceConfig::Type;
  const auto prompts_of = [&](SourceConfig::Type type) {
    SourceConfig source;
    source.type = type;
    source.idx_to_prompt = file;
    return source_fingerprint(source).at("idx_to_prompt");
  };
  EXPECT_EQ(prompts_of(class_labels), hash_file(file).hex());
  EXPECT_EQ(prompts_of(latents), prompts_of(class_labels));
  EXPECT_TRUE(prompts_of(webdataset).is_null());
}

TEST(FingerprintDifferences, NamesEveryKeyThatDiffers) {
  const nlohmann::json before = {{"transform", {{"resolution", 256}, {"crop", "center"}}}, {"encode.dtype", "float32"}};
  auto now = before;
  EXPECT_TRUE(fingerprint_differences(before, now).empty());
  now["transform"]["resolution"] = 512;
  now["tokenizer"] = {{"mode", "hf"}};
  EXPECT_THAT(fingerprint_differences(before, now),
              testing::ElementsAre("tokenizer.mode: none -> \"hf\"", "transform.resolution: 256 -> 512"));
}

}  // namespace
}  // namespace millrace
