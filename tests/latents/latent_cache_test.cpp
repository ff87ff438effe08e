#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "cached_archive.h"
#include "dataset/fake_source.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stop.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/cached_source.h"
#include "millrace/latents/changed_archives.h"
#include "millrace/latents/inspect_latent_cache.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/stripe_stream.h"
#include "own_log.h"

namespace millrace {
namespace {

using test::FakeSource;
using test::Rows;
using testing::ElementsAre;
using testing::HasSubstr;

const EncodingShape shape{{2, 3, 3}, {4, 5}};
constexpr std::size_t moments_size = 18, text_size = 20;

class Scratch {
 public:
  Scratch() {
    std::string pattern = fs::temp_directory_path() / "millrace-cache-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Scratch() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

template <class Call>
std::string refusal(Call call, Exit exit = Exit::io) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), exit) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return {};
}

// What the fake encoder makes of a row: the same for the same id.
Encoding encoding_of(const std::string& id) {
  Encoding encoding{std::vector<std::uint16_t>(moments_size), std::vector<std::uint16_t>(text_size)};
  const auto hash = hash64(id);
  for (std::size_t i = 0; i < moments_size; ++i) encoding.moments[i] = static_cast<std::uint16_t>(hash >> (i % 48));
  for (std::size_t i = 0; i < text_size; ++i) encoding.text[i] = static_cast<std::uint16_t>((hash * 3) >> (i % 48));
  return encoding;
}

CacheDescription description() {
  return {{{"made_with", "a test"}}, shape, std::vector<std::uint16_t>(text_size, 7)};
}

// Three archives of 17 rows, every fourth rejected.
FakeSource make_source() {
  std::vector<Rows> rows(3, Rows(17));
  for (auto& archive : rows)
    for (std::size_t i = 1; i < archive.size(); i += 4)
      archive[i] = i % 8 == 1 ? RejectReason::too_small : RejectReason::filtered;
  return FakeSource(std::move(rows), "bytes of an image");
}

// Puts some rows of an archive into the cache, as one file.
void store(const fs::path& cache, const FakeSource& source, std::uint32_t archive, std::vector<std::uint64_t> rows) {
  LatentFileWriter writer(cache, source.manifest().archives[archive], description());
  for (const auto row : rows) {
    const auto raw = *source.open({archive, 0, 1}, row)->next();
    if (const auto* rejected = std::get_if<Rejected>(&raw)) {
      writer.reject(row, rejected->reason);
      continue;
    }
    const auto id = source.id(archive, row);
    const auto encoding = encoding_of(id);
    writer.add({row, id, "caption of " + id, encoding.moments, encoding.text, true});
  }
  writer.publish();
}

std::vector<std::uint64_t> range(std::uint64_t first, std::uint64_t end, std::uint64_t step = 1) {
  std::vector<std::uint64_t> rows;
  for (auto row = first; row < end; row += step) rows.push_back(row);
  return rows;
}

void finish(const fs::path& cache, const FakeSource& source) {
  CacheManifest manifest;
  for (const auto& archive : source.manifest().archives) manifest.entries.push_back({archive, 17, false});
  write_cache_manifest(cache, manifest);
}

class LatentCache : public testing::Test {
 protected:
  LatentCache() { write_cache_description(cache, description()); }

  // Every row of a split: "id", "id cached" or the reason.
  std::vector<std::string> read(const SampleSource& cached, const Split& split, std::uint64_t first = 0) {
    std::vector<std::string> rows;
    const auto reader = cached.open(split, first);
    while (const auto row = reader->next()) {
      if (const auto* rejected = std::get_if<Rejected>(&*row)) {
        rows.push_back(to_string(rejected->reason));
      } else if (const auto* encoded = std::get_if<EncodedSample>(&*row)) {
        rows.push_back(encoded->ref.id + " cached");
        const auto expected = encoding_of(encoded->ref.id);
        EXPECT_EQ(encoded->encoding.moments, expected.moments) << encoded->ref.id;
        EXPECT_EQ(encoded->encoding.text, expected.text) << encoded->ref.id;
        EXPECT_EQ(encoded->ref.hash, hash64(encoded->ref.id));
      } else {
        rows.push_back(std::get<RawSample>(*row).ref.id);
      }
    }
    return rows;
  }
  std::unique_ptr<SampleSource> mixed() {
    return make_cached_source(cache, source.manifest(), std::make_unique<FakeSource>(source), CachedValues::full);
  }
  std::unique_ptr<SampleSource> offline() {
    return make_cached_source(cache, source.manifest(), nullptr, CachedValues::full);
  }
  fs::path only_file(const char* extension) {
    for (const auto& entry : fs::recursive_directory_iterator(cache / "rows"))
      if (entry.path().extension() == extension) return entry.path();
    return {};
  }

  const Scratch scratch;
  const fs::path cache = scratch / "cache";
  const FakeSource source = make_source();
};

TEST_F(LatentCache, KeepsItsDescription) {
  EXPECT_TRUE(is_latent_cache(cache));
  EXPECT_FALSE(is_latent_cache(scratch / "elsewhere"));
  write_cache_description(cache, {});  // stays as it is
  const auto read = read_cache_description(cache);
  EXPECT_EQ(read.fingerprint["made_with"], "a test");
  EXPECT_EQ(read.shape, shape);
  EXPECT_EQ(read.null_text, std::vector<std::uint16_t>(text_size, 7));
  EXPECT_FALSE(try_read_cache_manifest(cache).has_value());
}

// encode.text_on=trainer
TEST_F(LatentCache, MayHoldTokensInPlaceOfTextEmbeddings) {
  const auto folder = scratch / "of-tokens";
  const CacheDescription with_tokens{{{"made_with", "a test"}}, {shape.moments, {6}}, {}};
  write_cache_description(folder, with_tokens);
  EXPECT_EQ(read_cache_description(folder).shape, with_tokens.shape);
  EXPECT_TRUE(read_cache_description(folder).null_text.empty());

  const std::vector<std::int32_t> tokens{49406, 320, 1125, -1, 1 << 30, 49407};
  const auto encoding = encoding_of("000/0");
  LatentFileWriter writer(folder, source.manifest().archives[0], with_tokens);
  writer.add({0, "000/0", "a caption", encoding.moments, {}, true, tokens});
  EXPECT_THROW(writer.add({1, "000/1", "", encoding.moments, encoding.text, true}), Error);
  writer.publish();
  const auto cached = make_cached_source(folder, source.manifest(), nullptr, CachedValues::full);
  const auto read = std::get<EncodedSample>(*cached->open({0, 0, 1}, 0)->next()).encoding;
  EXPECT_EQ(read.moments, encoding.moments);
  EXPECT_EQ(read.tokens, tokens);
  EXPECT_TRUE(read.text.empty());
  EXPECT_EQ(read.bytes(), encoding_bytes(with_tokens.shape));

  const auto report = inspect_latent_cache(folder);
  EXPECT_TRUE(report["problems"].empty()) << report["problems"];
  EXPECT_EQ(report["tokens"], nlohmann::json({6}));
  EXPECT_FALSE(report.contains("text"));
  // One kind is not read as the other.
  const CachedArchive wrong(folder, source.manifest().archives[0], shape);
  CachedArchive::Opened opened;
  EXPECT_THAT(refusal([&] { wrong.load(wrong.find(0).front(), opened); }), HasSubstr("text"));
}

// Others in each row.
template <class Number>
std::vector<Number> numbers_of(std::uint64_t row, std::size_t count) {
  std::vector<Number> numbers(count);
  std::iota(numbers.begin(), numbers.end(), static_cast<Number>(100 * row));
  return numbers;
}

// More than the 1 MiB that a writer holds back.
TEST_F(LatentCache, AFileThatIsWrittenInPiecesHoldsEachRowOnce) {
  constexpr std::uint64_t rows = 18;  // a row of text embeddings takes 218 KiB, one of tokens 64 KiB
  const Archive& archive = source.manifest().archives[0];
  for (const bool has_tokens : {false, true}) {
    fs::remove_all(cache / "rows");
    const EncodingShape large{{8, 64, 64},
                              has_tokens ? std::vector<std::int64_t>{77} : std::vector<std::int64_t>{77, 1024}};
    const auto moments_of = [&](std::uint64_t row) { return numbers_of<std::uint16_t>(row, count_of(large.moments)); };
    const auto text_of = [&](std::uint64_t row) {
      return numbers_of<std::uint16_t>(row, has_tokens ? 0 : count_of(large.text));
    };
    const auto tokens_of = [&](std::uint64_t row) {
      return numbers_of<std::int32_t>(row, has_tokens ? count_of(large.text) : 0);
    };
    LatentFileWriter writer(cache, archive, {{{"made_with", "a test"}}, large, {}});
    for (std::uint64_t row = 0; row < rows; ++row) {
      const auto moments = moments_of(row), text = text_of(row);
      const auto tokens = tokens_of(row);
      writer.add({row, fmt::format("id {}", row), fmt::format("caption {}", row), moments, text, true, tokens});
    }
    writer.publish();

    std::vector<std::int64_t> numbers(rows);
    std::vector<std::string> captions;
    {
      const Hdf5Reader file(only_file(".h5"));
      ASSERT_EQ(file.expect("rows", DType::i64), rows);
      ASSERT_EQ(file.expect("captions", std::nullopt), rows);
      file.read("rows", 0, rows, std::as_writable_bytes(std::span(numbers)));
      captions = file.read_text("captions", 0, rows);
    }
    const CachedArchive cached(cache, archive, large);
    CachedArchive::Opened opened;
    for (std::uint64_t row = 0; row < rows; ++row) {
      const EncodedSample sample = cached.load(cached.find(row).front(), opened);
      EXPECT_EQ(sample.ref.id, fmt::format("id {}", row));
      EXPECT_EQ(captions[row], fmt::format("caption {}", row));
      EXPECT_EQ(numbers[row], static_cast<std::int64_t>(row));
      EXPECT_TRUE(sample.encoding.moments == moments_of(row)) << "row " << row;
      EXPECT_TRUE(sample.encoding.text == text_of(row)) << "row " << row;
      EXPECT_TRUE(sample.encoding.tokens == tokens_of(row)) << "row " << row;
    }
  }
}

// As several ranks have made them, whose rows alternate: to open one takes as long as to read a hundred rows.
TEST_F(LatentCache, FilesWhoseRowsAlternateStayOpenUntilTheirLastRow) {
  const auto read_all = [&](std::uint32_t archive, std::uint64_t rows, std::uint64_t files) {
    for (std::uint64_t first = 0; first < files; ++first) store(cache, source, archive, range(first, rows, files));
    const CachedArchive cached(cache, source.manifest().archives[archive], shape);
    CachedArchive::Opened opened;
    std::vector<std::size_t> open;  // after each row that is no rejected one
    for (std::uint64_t row = 0; row < rows; ++row) {
      const CachedPlace place = cached.find(row).front();
      if (place.rejected()) continue;
      EXPECT_EQ(cached.load(place, opened).ref.id, source.id(archive, row));
      open.push_back(opened.size());
    }
    return open;
  };
  EXPECT_THAT(read_all(0, 17, 3), ElementsAre(1, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3)) << "row 1 is a rejected one";
  EXPECT_THAT(read_all(2, 17, 17), testing::Each(1)) << "each is read up";
}

// One more than a reader holds, and each has a row behind all others.
TEST_F(LatentCache, AReaderHoldsSixteenFilesOpen) {
  constexpr std::uint64_t files = cached_files_of_a_reader + 1;
  const FakeSource long_source({Rows(3 * files)}, "bytes of an image");
  for (std::uint64_t first = 0; first < files; ++first) store(cache, long_source, 0, range(first, 3 * files, files));
  const CachedArchive cached(cache, long_source.manifest().archives[0], shape);
  CachedArchive::Opened opened;
  for (std::uint64_t row = 0; row < 3 * files; ++row) {
    EXPECT_EQ(cached.load(cached.find(row).front(), opened).ref.id, long_source.id(0, row));
    if (row < 2 * files) {  // behind that they end
      EXPECT_EQ(opened.size(), std::min<std::size_t>(row + 1, cached_files_of_a_reader)) << row;
    }
  }
}

TEST_F(LatentCache, MixesCachedAndOriginalRowsInPlace) {
  store(cache, source, 1, {0, 1, 2, 6});
  store(cache, source, 1, {8, 9});
  const auto rows = read(*mixed(), {1, 0, 1});
  EXPECT_THAT(rows, ElementsAre("001/0 cached", "too_small", "001/2 cached", "001/3", "001/4", "filtered",
                                "001/6 cached", "001/7", "001/8 cached", "too_small", "001/10", "001/11", "001/12",
                                "filtered", "001/14", "001/15", "001/16"));
  // Splits and later starts see the same rows.
  std::vector<std::string> split;
  for (std::size_t i = 2 + 3; i < rows.size(); i += 3) split.push_back(rows[i]);
  EXPECT_EQ(read(*mixed(), {1, 2, 3}, 1), split);
  EXPECT_EQ(read(*mixed(), {0, 0, 1}).size(), 17u);
}

TEST_F(LatentCache, ACompleteCacheNeedsNoOriginal) {
  for (std::uint32_t archive = 0; archive < 3; ++archive) {
    store(cache, source, archive, range(0, 17, 2));
    store(cache, source, archive, range(1, 17, 2));
  }
  EXPECT_THAT(refusal([&] { make_latent_manifest(cache, {}); }), HasSubstr("not complete"));
  finish(cache, source);
  const auto manifest = make_latent_manifest(cache, {});
  EXPECT_EQ(manifest, source.manifest());
  for (const Split split : {Split{0, 0, 1}, Split{2, 1, 4}}) {
    auto expected = read(source, split);
    for (auto& row : expected)
      if (row.find('/') != row.npos) row += " cached";
    EXPECT_EQ(read(*offline(), split), expected);
  }
  const auto report = inspect_latent_cache(cache);
  EXPECT_EQ(report["rows"], 51);
  EXPECT_EQ(report["accepted"], source.accepted());
  EXPECT_EQ(report["complete"], true);
  EXPECT_TRUE(report["problems"].empty()) << report["problems"];
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cache / "rows"))
    if (entry.path().extension() == ".json") {
      std::filesystem::remove(entry.path());
      break;
    }
  EXPECT_THAT(inspect_latent_cache(cache)["problems"].dump(), HasSubstr("are in no file"));
}

// The run that filled the cache counted archives as far as 512 stripes need it, or not at all; more stripes need more.
TEST_F(LatentCache, ItsManifestKnowsAllRowsOfWhatLanesCanRead) {
  CacheManifest written;
  for (const bool seekable : {true, true, false}) {
    Archive archive = source.manifest().archives[written.entries.size()];
    archive.seekable = seekable;
    archive.rows.reset();
    written.entries.push_back({archive, 1001, /*broken=*/written.entries.size() == 1});
  }
  written.entries[0].archive.rows = 512;
  write_cache_manifest(cache, written);
  const auto manifest = make_latent_manifest(cache, {});
  EXPECT_EQ(manifest.archives[0].rows, 1001u);
  EXPECT_EQ(manifest.archives[1].rows, 1000u);
  EXPECT_EQ(manifest.archives[2].rows, std::nullopt);
  EXPECT_EQ(plan_stripes(2000, {2000}, manifest).stripes, 2000u);
}

TEST_F(LatentCache, ADamagedManifestIsRefused) {
  const auto refused = [&](const char* text) {
    write_file_atomically(cache / "MANIFEST.json", text);
    return refusal([&] { (void)try_read_cache_manifest(cache); });
  };
  EXPECT_THAT(refused(R"({"archives": [{"file": "a later one's"}], "format": 2})"), HasSubstr("of format 2"));
  for (const char* archives : {"7", "[7]", R"([{"name": "a"}])", R"([[{"name": "a"}]])", R"({"a": {"name": "a"}})"})
    EXPECT_THAT(refused(fmt::format(R"({{"archives": {}, "format": 1}})", archives).c_str()),
                HasSubstr("MANIFEST.json: "));
  EXPECT_THAT(refused(R"({"others": [{"name": "a"}], "format": 1})"), HasSubstr("archives"));

  finish(cache, source);
  auto document = nlohmann::json::parse(read_file(cache / "MANIFEST.json"));
  document["others"] = {{{"name", "of a later program, no archive"}}};
  write_file_atomically(cache / "MANIFEST.json", document.dump());
  EXPECT_EQ(try_read_cache_manifest(cache)->entries.size(), 3u);
  Manifest some = source.manifest();
  some.archives.erase(some.archives.begin());
  some.archives[1].name = "999";
  for_each_finished(cache, some, [&](std::size_t number, const CacheManifest::Entry& entry) {
    EXPECT_EQ(number, 0u);
    EXPECT_EQ(entry.archive, some.archives[0]);
  });
}

TEST_F(LatentCache, ALimitCountsRowsAsOnline) {
  finish(cache, source);
  const auto manifest = make_latent_manifest(cache, 20);
  ASSERT_EQ(manifest.archives.size(), 2u);
  EXPECT_FALSE(manifest.archives[0].limit.has_value());
  EXPECT_EQ(manifest.archives[1].limit, 3u);
}

// The order of training, with ids, visits, cursors and the ledger, from pixels, from the cache and from both.
TEST_F(LatentCache, AStreamGivesTheSameSamplesFromAnySource) {
  struct NoImages final : SampleSource {  // the original, all of whose images are beyond use
    explicit NoImages(const FakeSource& source) : source(source) {}
    std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first) const override {
      ++opened;
      return source.open(split, first);
    }
    const FakeSource& source;
    mutable int opened = 0;
  };
  for (std::uint32_t archive = 0; archive < 3; ++archive) store(cache, source, archive, range(0, 17));
  finish(cache, source);
  const DataPlan plan{source.manifest(), plan_stripes(4, {}, source.manifest())};
  const EpochOrder order(1, plan.stripes);
  auto original = std::make_unique<NoImages>(source);
  const auto& watched = *original;
  const auto cached = make_cached_source(cache, source.manifest(), std::move(original), CachedValues::full);
  StripeStream stream(order, *cached, {}, {.threads = 2, .block = 3, .epochs = 0});
  Ledger ledger(plan);
  for (std::uint32_t s = 0; s < plan.stripes.stripes; ++s) {
    stream.add(s, {});
    test::PlainStripe expected(order, source, s, 3, {});
    for (int i = 0; i < 40; ++i) {
      const auto sample = stream.next(s);
      const auto wanted = expected.next();
      ASSERT_TRUE(sample && sample->encoding);
      ASSERT_EQ(sample->ref.id, wanted.id);
      ASSERT_EQ(sample->ref.epoch, wanted.epoch);
      ASSERT_EQ(sample->ref.after, wanted.after);
      ASSERT_EQ(sample->encoding->moments, encoding_of(wanted.id).moments);
      const auto delta = stream.take_ledger_delta(s);
      EXPECT_TRUE(fresh_rejections(delta, plan.stripes).empty()) << "the cache knew them";
      ledger.merge(delta);
    }
  }
  EXPECT_EQ(ledger.total().rows(), 51u);
  EXPECT_EQ(ledger.total().accepted, source.accepted());
  EXPECT_EQ(watched.opened, 0) << "a complete cache spares the archives";
}

// An original that counts how often it is opened.
struct CountedSource final : SampleSource {
  CountedSource(const FakeSource& source, int& opened) : source(source), opened(opened) {}
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first) const override {
    ++opened;
    return source.open(split, first);
  }
  const FakeSource& source;
  int& opened;
};

class EndOfArchive : public LatentCache {
 protected:
  // A run that reads a split of the cache; how often it opened the original, which is `archives`.
  int read_anew(const FakeSource& archives, std::size_t rows, const Split& split, std::uint64_t first = 0,
                CachedValues values = CachedValues::full) {
    int opened = 0;
    const auto cached =
        make_cached_source(cache, archives.manifest(), std::make_unique<CountedSource>(archives, opened), values);
    const auto reader = cached->open(split, first);
    std::size_t found = 0;
    while (reader->next()) ++found;
    EXPECT_FALSE(reader->next().has_value());
    EXPECT_EQ(found, rows);
    return opened;
  }
  const fs::path end = latent_folder(cache, "000") / "END";
};

CacheManifest::Entry entry(const std::string& path, const std::string& name, std::uint64_t bytes, std::uint64_t total,
                           std::optional<std::uint64_t> limit = {}) {
  return {{path, name, bytes, true, total, limit}, total, false};
}

std::vector<std::pair<std::string, std::uint64_t>> listed(const fs::path& cache) {
  std::vector<std::pair<std::string, std::uint64_t>> listed;
  const auto manifest = try_read_cache_manifest(cache);
  for (const auto& each : manifest->entries) listed.emplace_back(each.archive.name, each.total);
  return listed;
}

// As preprocess makes them with an archive's first file.
void make_folders(const fs::path& cache, const std::vector<std::string>& archives) {
  for (const auto& name : archives) fs::create_directories(latent_folder(cache, name));
}

// Half of the data in one job, the other half in the next; and a look at what comes out, of a few rows.
TEST_F(LatentCache, AFinishedRunAddsToWhatEarlierOnesHaveRead) {
  using testing::Pair;
  make_folders(cache, {"0", "1", "2"});
  const auto add = [&](const CacheManifest& finished) { return add_to_cache_manifest(cache, finished); };
  EXPECT_THAT(add({{entry("/d/1.tar", "1", 100, 17), entry("/d/2.tar", "2", 200, 18)}}), ElementsAre());
  EXPECT_THAT(add({{entry("/d/0.tar", "0", 300, 19), entry("/d/2.tar", "2", 200, 5, 5)}}), ElementsAre("1"));
  EXPECT_THAT(listed(cache), ElementsAre(Pair("0", 19), Pair("1", 17), Pair("2", 18)));
  EXPECT_THAT(add({{entry("/d/2.tar", "2", 220, 20)}}), ElementsAre("0", "1")) << "it has grown";
  EXPECT_THAT(listed(cache), ElementsAre(Pair("0", 19), Pair("1", 17), Pair("2", 20)));
  fs::remove(latent_folder(cache, "0"));  // an archive that has proved to be bad
  EXPECT_THAT(add({{entry("/d/2.tar", "2", 220, 20)}}), ElementsAre("1"));
  EXPECT_THAT(listed(cache), ElementsAre(Pair("1", 17), Pair("2", 20)));
  write_file_atomically(cache / "MANIFEST.json", "{");
  EXPECT_THAT(add({{entry("/d/1.tar", "1", 100, 17)}}), ElementsAre());
  EXPECT_THAT(listed(cache), ElementsAre(Pair("1", 17)));
}

// Twice in the list, an archive's samples would be trained twice.
TEST_F(LatentCache, AnArchiveThatHasAnotherNameBesideOthersIsListedOnce) {
  using testing::Pair;
  make_folders(cache, {"1", "2", "e/1", "f/1"});
  add_to_cache_manifest(cache, {{entry("/a/1.tar", "1", 100, 17), entry("s3://b/2.tar", "2", 0, 18)}});
  add_to_cache_manifest(cache, {{entry("../a/1.tar", "a/1", 100, 17), entry("/c/1.tar", "c/1", 300, 19),
                                 entry("s3://b/2.tar", "b/2", 0, 18), entry("/c/2.tar", "c/2", 400, 20)}});
  EXPECT_THAT(listed(cache), ElementsAre(Pair("a/1", 17), Pair("b/2", 18), Pair("c/1", 19), Pair("c/2", 20)));
  // Tars are padded: those of other sets may be equally long.
  fs::remove(cache / "MANIFEST.json");
  add_to_cache_manifest(cache, {{entry("/e/1.tar", "e/1", 100, 17), entry("/f/1.tar", "f/1", 200, 18)}});
  add_to_cache_manifest(cache, {{entry("/g/1.tar", "g/1", 100, 19), entry("/f/1.tar", "f/1", 100, 3, 3)}});
  EXPECT_THAT(listed(cache), ElementsAre(Pair("e/1", 17), Pair("f/1", 3), Pair("g/1", 19)));
}

// As after a preemption: MANIFEST.json comes when all is done.
TEST_F(EndOfArchive, ThatWasReadSparesTheArchiveFromThenOn) {
  store(cache, source, 0, range(0, 17));
  store(cache, source, 1, range(0, 10));
  EXPECT_EQ(read_anew(source, 6, {0, 1, 3}), 1) << "a split does not know where the archive ends";
  EXPECT_FALSE(fs::exists(end));
  EXPECT_EQ(read_anew(source, 17, {0, 0, 1}, 0, CachedValues::keys_only), 1);
  EXPECT_EQ(nlohmann::json::parse(read_file(end)), nlohmann::json({{"rows", 17}, {"bytes", 0}}));
  for (const auto values : {CachedValues::full, CachedValues::keys_only}) {
    EXPECT_EQ(read_anew(source, 17, {0, 0, 1}, 0, values), 0);
    EXPECT_EQ(read_anew(source, 6, {0, 1, 3}, 0, values), 0);
    EXPECT_EQ(read_anew(source, 0, {0, 0, 1}, 17, values), 0);
  }
  EXPECT_EQ(read_anew(source, 17, {1, 0, 1}), 1) << "rows are missing";
  EXPECT_EQ(read_anew(source, 17, {2, 0, 1}), 1) << "nothing is cached";
  const auto report = inspect_latent_cache(cache);
  EXPECT_EQ(report["files"], 2);
  EXPECT_TRUE(report["problems"].empty()) << report["problems"];
}

// MANIFEST.json tells of all archives, 40 MB of 200,000, and every rank would read it.
TEST_F(EndOfArchive, ThatIsKnownSparesTheManifest) {
  for (std::uint32_t archive = 0; archive < 2; ++archive) store(cache, source, archive, range(0, 17));
  EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 1);
  write_file_atomically(cache / "MANIFEST.json", "{");
  EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 0);
  EXPECT_EQ(read_anew(source, 6, {0, 1, 3}, 0, CachedValues::keys_only), 0);
  const auto complete = offline();
  EXPECT_EQ(read(*complete, {0, 0, 1}).size(), 17u);
  EXPECT_THAT(refusal([&] { (void)read(*complete, {1, 0, 1}); }), HasSubstr("MANIFEST.json")) << "nobody has seen it";
  EXPECT_THAT(refusal([&] { (void)read_anew(source, 17, {1, 0, 1}); }), HasSubstr("MANIFEST.json"));
}

// preprocess found the archive broken; who trained on it when it was whole again has not added all of it.
TEST_F(EndOfArchive, BehindRowsThatAreMissingIsNotTheEndOfACompleteCache) {
  store(cache, source, 0, range(0, 5));
  write_cache_manifest(cache, {{{source.manifest().archives[0], 5, /*broken=*/true}}});
  write_file_atomically(end, R"({"rows": 17, "bytes": 0})");
  EXPECT_EQ(read(*offline(), {0, 0, 1}).size(), 5u);
  EXPECT_EQ(read(*mixed(), {0, 0, 1}).size(), 17u);
}

TEST_F(EndOfArchive, OfABrokenOneIsAskedForAgain) {
  std::vector<Rows> broken(1, Rows(5));
  broken[0][4] = RejectReason::archive_error;
  const FakeSource archives(broken, "bytes of an image");
  store(cache, archives, 0, range(0, 4));
  EXPECT_EQ(read_anew(archives, 5, {0, 0, 1}), 1);
  store(cache, archives, 0, {4});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(read_anew(archives, 5, {0, 0, 1}), 1);
    EXPECT_EQ(read_anew(archives, 5, {0, 0, 1}, 0, CachedValues::keys_only), 1);
  }
  EXPECT_FALSE(fs::exists(end));
  // It breaks in front of rows that were read when it was whole.
  store(cache, source, 0, range(4, 16));
  EXPECT_EQ(read_anew(archives, 16, {0, 0, 1}), 1);
  EXPECT_FALSE(fs::exists(end));
  // And where the archive tells of it in place of a row that is in the cache, that is not lost.
  std::vector<Rows> lost(1, Rows(16));
  lost[0][15] = RejectReason::archive_error;
  const FakeSource shorter(lost, "bytes of an image");
  EXPECT_EQ(read_anew(shorter, 17, {0, 0, 1}), 1);
  EXPECT_FALSE(fs::exists(end));
  EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 1);
  EXPECT_TRUE(fs::exists(end)) << "whole again";
}

TEST_F(EndOfArchive, IsNotWhereALimitCutsIt) {
  store(cache, source, 0, range(0, 17));
  auto manifest = source.manifest();
  manifest.archives[0].limit = 10;
  int opened = 0;
  const auto cached =
      make_cached_source(cache, manifest, std::make_unique<CountedSource>(source, opened), CachedValues::full);
  EXPECT_EQ(read(*cached, {0, 0, 1}).size(), 10u);
  EXPECT_EQ(opened, 0);
  EXPECT_FALSE(fs::exists(end));
}

TEST_F(EndOfArchive, ThatMakesNoSenseCountsAsNone) {
  store(cache, source, 0, range(0, 17));
  for (const char* text :
       {"", "{", "[17, 0]", "{}", R"({"rows": 17})", R"({"rows": "17", "bytes": 0})", R"({"rows": 17, "bytes": 99})",
        R"({"rows": -1, "bytes": 0})", R"({"rows": 3.5, "bytes": 0})", R"({"rows": 16, "bytes": 0})"}) {
    write_file_atomically(end, text);
    EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 1) << text;
    EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 0) << text << ": it was written again";
  }
  fs::remove(end);
  fs::create_directory(end);  // cannot be written
  for (int i = 0; i < 2; ++i) EXPECT_EQ(read_anew(source, 17, {0, 0, 1}), 1);
}

TEST_F(LatentCache, LeftValuesTellWhatIsThere) {
  LatentFileWriter writer(cache, source.manifest().archives[0], description());
  const auto encoding = encoding_of("x");
  writer.add({0, "000/0", "", encoding.moments, encoding.text, true});
  writer.add({2, "000/2", "", encoding.moments, encoding.text, /*finite=*/false});
  writer.publish();
  const auto cached =
      make_cached_source(cache, source.manifest(), std::make_unique<FakeSource>(source), CachedValues::keys_only);
  const auto reader = cached->open({0, 0, 1}, 0);
  EXPECT_EQ(std::get<EncodedSample>(*reader->next()).encoding.values, Encoding::Values::left_in_cache);
  EXPECT_TRUE(std::holds_alternative<Rejected>(*reader->next()));
  const auto not_finite = std::get<EncodedSample>(*reader->next());
  EXPECT_EQ(not_finite.encoding.values, Encoding::Values::left_not_finite);
  EXPECT_EQ(not_finite.ref.hash, hash64("000/2")) << "the ledger has to know it";
  EXPECT_EQ(std::get<RawSample>(*reader->next()).ref.id, "000/3");
}

TEST_F(LatentCache, AKeyThatIsNotUtf8IsToldAsNearlyAsCanBe) {
  LatentFileWriter writer(cache, source.manifest().archives[0], description());
  const auto encoding = encoding_of("x");
  writer.add({0, "000/caf\xe9", "", encoding.moments, encoding.text, /*finite=*/false});
  writer.publish();
  EXPECT_EQ(read_latent_file_info(only_file(".json")).non_finite,
            (std::map<std::uint64_t, std::string>{{0, "000/caf\ufffd"}}));
}

// An image or an archive that was away when the cache was filled may be there now; what it is made of will not change.
TEST_F(LatentCache, WhatMayHaveComeBackIsAskedForByWhoFillsIt) {
  LatentFileWriter writer(cache, source.manifest().archives[0], description());
  writer.reject(0, RejectReason::missing_image);
  writer.reject(2, RejectReason::archive_error);
  writer.reject(3, RejectReason::decode_error);
  writer.publish();
  CacheManifest manifest;
  manifest.entries.push_back({source.manifest().archives[0], 3, /*broken=*/true});
  write_cache_manifest(cache, manifest);
  const auto filling =
      make_cached_source(cache, source.manifest(), std::make_unique<FakeSource>(source), CachedValues::keys_only);
  auto rows = read(*filling, {0, 0, 1});
  ASSERT_EQ(rows.size(), 17u) << "the archive is longer than when it was broken";
  rows.resize(5);
  EXPECT_THAT(rows, ElementsAre("000/0", "too_small", "000/2", "decode_error", "000/4"));
  rows = read(*mixed(), {0, 0, 1});
  rows.resize(4);
  EXPECT_THAT(rows, ElementsAre("missing_image", "too_small", "archive_error", "decode_error"));

  // Row 0 has come back, row 2 is now something else that will not change: that holds, and counts once.
  LatentFileWriter again(cache, source.manifest().archives[0], description());
  const auto encoding = encoding_of("000/0");
  again.add({0, "000/0", "", encoding.moments, encoding.text, true});
  again.reject(2, RejectReason::too_large);
  again.publish();
  rows = read(*mixed(), {0, 0, 1});
  rows.resize(4);
  EXPECT_THAT(rows, ElementsAre("000/0 cached", "too_small", "too_large", "decode_error"));
  const auto report = inspect_latent_cache(cache);
  EXPECT_EQ(report["accepted"], 1);
  EXPECT_EQ(report["rejected"], 2);
}

TEST_F(LatentCache, AnUnpublishedFileLeavesNothing) {
  {
    LatentFileWriter writer(cache, source.manifest().archives[0], description());
    const auto encoding = encoding_of("x");
    writer.add({0, "000/0", "", encoding.moments, encoding.text, true});
  }
  EXPECT_TRUE(fs::is_empty(latent_scratch(cache)));
  EXPECT_TRUE(fs::is_empty(latent_folder(cache, "000")));
  // A killed writer's file without its .json does not count.
  std::ofstream(latent_folder(cache, "000") / "0000000000-0000000000000000.h5") << "half a file";
  EXPECT_EQ(read(*mixed(), {0, 0, 1})[0], "000/0");
}

TEST_F(LatentCache, ClearingLeavesTheScratchOfOthersAtWork) {
  const auto encoding = encoding_of("000/0");
  LatentFileWriter own(cache, source.manifest().archives[0], description());
  own.add({0, "000/0", "", encoding.moments, encoding.text, true});
  const pid_t child = ::fork();
  if (child == 0) {  // killed at work
    LatentFileWriter killed(cache, source.manifest().archives[1], description());
    killed.add({0, "001/0", "", encoding.moments, encoding.text, true});
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto scratch = latent_scratch(cache);
  ASSERT_EQ(std::distance(fs::directory_iterator(scratch), {}), 2);
  const auto old = scratch / "0123456789abcdef-0123456789abcdef-1.h5";  // another machine's
  const auto young = scratch / "0123456789abcdef-0123456789abcdef-2.h5";
  for (const auto& path : {old, young}) std::ofstream(path) << "half a file";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(25));
  fs::last_write_time(young, fs::file_time_type::clock::now() - std::chrono::hours(23));

  clear_latent_scratch(cache);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch), {}), 2);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  own.publish();
  EXPECT_EQ(read(*mixed(), {0, 0, 1})[0], "000/0 cached");
}

TEST_F(LatentCache, WhatAKilledProcessWasWritingIsRemovedWhereItLies) {
  store(cache, source, 0, range(0, 17));
  const auto own = process_name();
  const auto gone = own.substr(0, own.find('-')) + "-4194999";  // beyond pid_max
  const auto rows = latent_folder(cache, "000");
  const auto litter = {cache / ("CACHE.json.tmp-" + gone), rows / ("x.json.tmp-" + gone)};
  const auto at_work = {cache / ("MANIFEST.json.tmp-" + own), rows / ("y.json.tmp-" + own)};
  for (const auto& path : litter) std::ofstream(path) << "{";
  for (const auto& path : at_work) std::ofstream(path) << "{";

  clear_latent_scratch(cache);
  EXPECT_EQ(read(*mixed(), {0, 0, 1})[0], "000/0 cached");
  for (const auto& path : litter) EXPECT_FALSE(fs::exists(path)) << path;
  for (const auto& path : at_work) EXPECT_TRUE(fs::exists(path)) << path;
}

// Killed between the two files: the rows are grouped differently the next time, and no name comes again.
TEST_F(LatentCache, ALatentFileThatNobodyDescribedGoesAfterADay) {
  store(cache, source, 0, range(0, 17));
  const auto folder = latent_folder(cache, "000"), whole = only_file(".h5");
  const auto old = folder / "0000000003-0123456789abcdef.h5", young = folder / "0000000004-0123456789abcdef.h5";
  for (const auto& path : {old, young}) std::ofstream(path) << "an hour's work";
  for (const auto& path : {old, whole})
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(25));
  EXPECT_EQ(read(*mixed(), {0, 0, 1})[0], "000/0 cached");
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young)) << "its writer may be about to describe it";
  EXPECT_TRUE(fs::exists(whole));
}

// Copied with its times, the .h5 comes before the .json.
TEST_F(LatentCache, OfAFinishedCacheNoLatentFileIsDeleted) {
  store(cache, source, 0, range(0, 17));
  write_cache_manifest(cache, {});
  const auto half = latent_folder(cache, "000") / "0000000003-0123456789abcdef.h5";
  std::ofstream(half) << "an hour's work";
  fs::last_write_time(half, fs::file_time_type::clock::now() - std::chrono::hours(25));
  EXPECT_EQ(read(*mixed(), {0, 0, 1})[0], "000/0 cached");
  EXPECT_TRUE(fs::exists(half));
}

// "tmp" is also what an archive or a cache may be called.
TEST_F(LatentCache, CompleteFilesAreNeverAbandonedWhateverTheirFolderIsCalled) {
  const auto folder = cache / "tmp";
  auto archive = source.manifest().archives[0];
  archive.name = "tmp";
  write_cache_description(folder, description());
  LatentFileWriter writer(folder, archive, description());
  const auto encoding = encoding_of("000/0");
  writer.add({0, "000/0", "", encoding.moments, encoding.text, true});
  writer.publish();
  const auto files_of_cache = [&] {
    std::set<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) files.insert(entry.path());
    return files;
  };
  const auto before = files_of_cache();
  ASSERT_GE(before.size(), 4u);
  for (const auto& file : before) fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(25));
  clear_latent_scratch(folder);
  EXPECT_FALSE(CachedArchive(folder, archive, shape).find(0).empty());
  EXPECT_EQ(files_of_cache(), before);
}

TEST_F(LatentCache, TheSameRowsMakeTheSameFile) {
  store(cache, source, 0, range(0, 17));
  const auto file = only_file(".h5");
  const auto before = hash_file(file);
  store(cache, source, 0, range(0, 17));
  EXPECT_EQ(std::distance(fs::directory_iterator(latent_folder(cache, "000")), {}), 2);
  EXPECT_EQ(hash_file(file), before);
}

TEST_F(LatentCache, ADamagedFileIsNeverParsed) {
  store(cache, source, 0, range(0, 17));
  finish(cache, source);
  const auto file = only_file(".h5");
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<std::streamoff>(fs::file_size(file) / 2)).put('\x55').put('\xAA');
  }
  EXPECT_THAT(refusal([&] { offline()->open({0, 0, 1}, 0)->next(); }), HasSubstr("digest"));
  const auto rows = read(*mixed(), {0, 0, 1});
  EXPECT_EQ(rows[0], "000/0") << "encoded anew";
  EXPECT_EQ(rows[1], "too_small");
  EXPECT_THAT(inspect_latent_cache(cache)["problems"].dump(), HasSubstr(file.filename().string()));

  fs::resize_file(file, 100);
  EXPECT_EQ(read(*mixed(), {0, 0, 1}), read(source, {0, 0, 1}));
  EXPECT_THAT(refusal([&] { offline()->open({0, 0, 1}, 0)->next(); }), HasSubstr("row 0 of archive 000"));
}

// The sound copies lie in a file whose name comes later: names begin with the first row.
TEST_F(LatentCache, ADamagedFileHidesNoSoundCopyOfItsRows) {
  store(cache, source, 0, range(0, 17));
  const auto damaged = only_file(".h5");
  store(cache, source, 0, {16, 0, 2, 3});
  finish(cache, source);
  std::fstream(damaged, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(fs::file_size(damaged) / 2))
      .put('\x55')
      .put('\xAA');
  const auto begins_with = [&](const SampleSource& cached, std::uint64_t row) {
    const auto read_row = *cached.open({0, 0, 1}, row)->next();
    const auto* encoded = std::get_if<EncodedSample>(&read_row);
    return encoded ? encoded->ref.id + " cached" : std::get<RawSample>(read_row).ref.id;
  };
  for (const std::uint64_t row : {0, 2, 3, 16}) {
    EXPECT_EQ(begins_with(*mixed(), row), fmt::format("000/{} cached", row));
    EXPECT_EQ(begins_with(*offline(), row), fmt::format("000/{} cached", row));
  }
  EXPECT_EQ(begins_with(*mixed(), 6), "000/6");
  EXPECT_THAT(refusal([&] { (void)begins_with(*offline(), 6); }), HasSubstr("digest"));
}

TEST_F(LatentCache, ForeignFilesAreTypedErrors) {
  store(cache, source, 0, range(0, 17));
  const auto json_path = only_file(".json");
  const auto original = nlohmann::json::parse(read_file(json_path));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto changed = original;
    changed[key] = value;
    write_file_atomically(json_path, changed.dump());
    return refusal([&] { read_latent_file_info(json_path); });
  };
  EXPECT_THAT(with("format", 2), HasSubstr("later format"));
  EXPECT_THAT(with("rows", {{0, 1, 1ull << 40}}), HasSubstr("more than"));
  EXPECT_THAT(with("rows", "all"), HasSubstr(json_path.string()));
  EXPECT_THAT(with("rejected", {{"boring", nlohmann::json::array()}}), HasSubstr("boring"));
  EXPECT_THAT(with("xxh3_128", "12"), HasSubstr("12"));
  write_file_atomically(json_path, "{");
  refusal([&] { read_latent_file_info(json_path); });

  // A file that fits its digest, but not what is said about it.
  auto changed = original;
  changed["rows"] = {{0, 1, 99}};
  write_file_atomically(json_path, changed.dump());
  finish(cache, source);
  EXPECT_THAT(refusal([&] { offline()->open({0, 0, 1}, 0)->next(); }), HasSubstr("99 are announced"));

  const auto path = cache / "CACHE.json";
  auto document = nlohmann::json::parse(read_file(path));
  for (const auto& bad : {nlohmann::json({8, 8}), nlohmann::json({1 << 20, 1 << 20, 1 << 20}),
                          nlohmann::json({0, 1, 1}), nlohmann::json("8")}) {
    document["moments"] = bad;
    write_file_atomically(path, document.dump());
    EXPECT_THAT(refusal([&] { read_cache_description(cache); }), HasSubstr("CACHE.json")) << bad;
  }
}

TEST_F(LatentCache, AChangedArchiveIsNoticed) {
  auto archive = source.manifest().archives[0];
  archive.bytes = 1000;
  const auto encoding = encoding_of("x");
  LatentFileWriter writer(cache, archive, description());
  writer.add({0, "000/0", "", encoding.moments, encoding.text, true});
  writer.publish();
  archive.bytes = 1001;
  EXPECT_THAT(refusal([&] { CachedArchive(cache, archive, shape); }, Exit::usage), HasSubstr("1000 bytes"));
}

class ChangedArchives : public LatentCache {
 protected:
  // One row of each of 24 archives, and these.
  ChangedArchives() {
    for (int number = 0; number < 24; ++number) {
      Archive archive;
      archive.name = archive.path = fmt::format("{:05}", number);
      archive.bytes = 1000;
      encode(archive);
      archives.archives.push_back(archive);
    }
  }
  void encode(const Archive& archive) const {
    const auto encoding = encoding_of("x");
    LatentFileWriter writer(cache, archive, description());
    writer.add({0, archive.name + "/0", "", encoding.moments, encoding.text, true});
    writer.publish();
  }
  void check() const { check_archives(cache, archives, StorageRetry::Seconds(30)); }
  Error refused() const {
    return test::error_of([&] { check(); });
  }
  Manifest archives;
};

TEST_F(ChangedArchives, AreToldAllAtOnceWithWhatRemovesTheirLatents) {
  EXPECT_NO_THROW(check());
  for (const int number : {3, 4, 5, 9, 20}) archives.archives[number].bytes = 1100;
  const auto error = refused();
  EXPECT_EQ(error.exit(), Exit::usage) << "the next start finds the same";
  EXPECT_THAT(error.what(), HasSubstr("5 of 24 archives"));
  EXPECT_THAT(error.what(), HasSubstr("00003 (1000 bytes, now 1100), 00004"));
  EXPECT_THAT(error.hint(), HasSubstr("cd " + (cache / "rows").string() + " && rm -r -- {00003..00005} 00009 00020`"));
  for (const int number : {3, 4, 5, 9, 20}) fs::remove_all(latent_folder(cache, archives.archives[number].name));
  EXPECT_NO_THROW(check());
}

TEST_F(ChangedArchives, AskFirstWhoseCacheItIsWhereMostDiffer) {
  const std::string question = "is it the cache of other data? then choose another encode.cache; if not, ";
  for (int number = 0; number < 13; ++number) archives.archives[number].bytes = 1100;
  EXPECT_THAT(refused().hint(), testing::StartsWith(question));
  archives.archives[12].bytes = 1000;
  EXPECT_THAT(refused().hint(), testing::Not(HasSubstr(question)));
  for (int number = 0; number < 4; ++number)  // nobody knows of these
    fs::remove_all(latent_folder(cache, archives.archives[20 + number].name));
  EXPECT_THAT(refused().hint(), testing::StartsWith(question)) << "12 of 20";
}

// Names such as 00000 are those of many sets of data, and behind an address nobody tells a size.
TEST_F(ChangedArchives, BehindOtherAddressesAreWarnedOf) {
  const auto address = [](const std::string& set, const std::string& name) {
    return fmt::format("https://me:secret@host/{}/{}.tar", set, name);
  };
  CacheManifest manifest;
  for (auto& archive : archives.archives) {
    fs::remove_all(latent_folder(cache, archive.name));
    archive.path = address("laion", archive.name);
    archive.bytes = 0;
    encode(archive);
    manifest.entries.push_back({archive, 1, false});
  }
  const auto warning = [&] {
    const test::OwnLog log;
    check();
    return log.text();
  };
  for (const bool is_complete : {false, true}) {
    if (is_complete) write_cache_manifest(cache, manifest);
    EXPECT_EQ(warning(), "");
    auto& moved = archives.archives[3].path;
    moved = address("cc12m", "00003");
    EXPECT_THAT(warning(),
                testing::AllOf(HasSubstr("1 of 24 archives lie elsewhere"), HasSubstr("host/laion/00003.tar, now "),
                               HasSubstr("host/cc12m/00003.tar"), testing::Not(HasSubstr("secret"))));
    moved = address("laion", "00003");
  }
}

TEST_F(ChangedArchives, QuotesTheCacheForTheShell) {
  const fs::path other = cache.string() + " of A";
  fs::rename(cache, other);
  archives.archives[3].bytes = 1100;
  const auto error = test::error_of([&] { check_archives(other, archives, StorageRetry::Seconds(30)); });
  fs::rename(other, cache);
  EXPECT_THAT(error.hint(), HasSubstr("`cd '" + (other / "rows").string() + "' && rm -r -- 00003`"));
}

TEST_F(ChangedArchives, AreLookedAtAgainWhenStorageComesBack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at objects by a pipe, and none may be opened here";
#endif
  archives.archives[7].bytes = 1100;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);  // EMFILE
  std::jthread comes_back([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::setrlimit(RLIMIT_NOFILE, &before);
  });
  EXPECT_THAT(refused().what(), HasSubstr("1 of 24 archives"));
}

// In a process of its own, since nothing takes a stop back.
TEST_F(ChangedArchives, AreNotLookedAtAfterAStop) {
  const auto told = [&] {
    stop::request(SIGTERM);
    std::exit(static_cast<int>(refused().exit()));
  };
  archives.archives[7].bytes = 1100;
  EXPECT_EXIT(told(), testing::ExitedWithCode(static_cast<int>(Exit::requeue)), "");
}

// Its MANIFEST.json tells the sizes of before until a run has finished again.
TEST_F(ChangedArchives, OfACompleteCacheMayBeEncodedAnew) {
  CacheManifest finished;
  for (const auto& archive : archives.archives) finished.entries.push_back({archive, 1, false});
  write_cache_manifest(cache, finished);
  EXPECT_NO_THROW(check());
  auto& changed = archives.archives[7];
  changed.bytes = 1100;
  EXPECT_THAT(refused().what(), HasSubstr("1 of 24 archives"));
  fs::remove_all(latent_folder(cache, changed.name));
  encode(changed);
  EXPECT_NO_THROW(check());
  changed.bytes = 0;
  EXPECT_NO_THROW(check()) << "behind an address nobody knows";
}

// By download.retry_failed: what an earlier run counted is not where it ends.
TEST_F(LatentCache, AnArchiveThatHasGrownIsReadToItsNewEnd) {
  const FakeSource grown({Rows(20)});
  Manifest now = grown.manifest();
  Archive before = now.archives[0];
  before.bytes = 1000;
  now.archives[0].bytes = 1100;
  write_cache_manifest(cache, {{{before, 17, false}}});
  const auto cached = make_cached_source(cache, now, std::make_unique<FakeSource>(grown), CachedValues::full);
  EXPECT_EQ(read(*cached, {0, 0, 1}).size(), 20u);
}

TEST(LatentFolder, StaysInsideTheCacheWhateverAnArchiveIsCalled) {
  std::set<fs::path> folders;
  const std::vector<std::string> names{
      "00000", "a/00000", "b/00000", "..", ".", "../../etc", "x y", std::string(300, 'z'), std::string(301, 'z'),
      "größe"};
  for (const std::string& name : names) {
    const auto folder = latent_folder("/cache", name);
    EXPECT_EQ(folder.parent_path(), "/cache/rows") << name;
    EXPECT_EQ(folder.lexically_normal(), folder) << name;
    EXPECT_LT(folder.filename().string().size(), 200u);
    EXPECT_TRUE(folders.insert(folder).second) << name;
  }
  EXPECT_EQ(latent_folder("/cache", "00000").filename(), "00000");
}

}  // namespace
}  // namespace millrace
