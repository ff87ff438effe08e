// What readers make of storage that stays away for a while: the rows and the order of a straight run.
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <random>
#include <thread>

#include "dataset/fake_source.h"
#include "dataset/rows_of.h"
#include "dataset/temp_archives.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"
#include "millrace/dataset/image_uri.h"
#include "millrace/dataset/retrying_source.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/io/tar.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/cached_source.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/stripe_stream.h"
#include "test_data.h"
#include "tools/faults.h"

namespace millrace {
namespace {

using test::clear_fault;
using test::Fault;
using test::fault_calls;
using test::fault_failures;
using test::inject;
using test::small_jpeg;
using test::TempFolder;
using testing::HasSubstr;
using Type = SourceConfig::Type;
using Seconds = StorageRetry::Seconds;

constexpr std::uint64_t rows = 60;
const EncodingShape shape{{8, 2, 2}, {3, 2}};

std::string show(const RawRow& row) {
  const auto* encoded = std::get_if<EncodedSample>(&row);
  return encoded ? fmt::format("{} {}", encoded->ref.id, encoded->encoding.moments.at(0)) : test::show(row);
}

std::vector<std::string> rows_of(const SampleSource& source, const Split& split, std::uint64_t first_row) {
  std::vector<std::string> shown;
  const auto reader = source.open(split, first_row);
  while (const auto row = reader->next()) shown.push_back(show(*row));
  return shown;
}

// A data set in a folder of its own, and how it is read.
struct Data {
  std::string name;
  Manifest manifest;
  std::function<std::unique_ptr<SampleSource>()> open;
  bool splits = true;
};

class Storage : public testing::Test {
 protected:
  ~Storage() override { clear_fault(); }

  // Rows of a few kilobytes, so that an archive is more than one read; every seventh lacks its caption.
  void write_tar(const std::string& name) const {
    std::mt19937 random(7);
    std::vector<TarSample> samples;
    for (std::uint64_t i = 0; i < rows; ++i) {
      std::string image(4000, '\0');
      for (char& c : image) c = static_cast<char>(random());
      samples.push_back(test::sample(fmt::format("{:03}", i), image, fmt::format("caption {}", i)));
      if (i % 7 == 3) samples.back().fields.pop_back();
    }
    folder.write_tar(name, samples);
  }

  Data data(const std::string& name, Type type, const std::string& path, const std::string& index = "never") const {
    SourceConfig config;
    config.type = type;
    config.path = {path};
    config.columns.key = type == Type::csv ? std::optional<std::string>("key") : std::nullopt;
    const auto manifest = std::make_shared<Manifest>(make_manifest(config, true));
    return {name, *manifest, [=] { return make_source(config, *manifest, 16, index); }, manifest->archives[0].seekable};
  }

  Data tar() const {
    write_tar("a.tar");
    return data("tar", Type::webdataset, folder.path("a.tar"));
  }

  Data damaged() const {
    write_tar("b.tar");
    fs::resize_file(folder.path("b.tar"), fs::file_size(folder.path("b.tar")) / 2);
    return data("damaged tar", Type::webdataset, folder.path("b.tar"));
  }

  Data indexed() const {
    write_tar("c.tar");
    return data("tar with its index kept", Type::webdataset, folder.path("c.tar"), "beside");
  }

  Data compressed() const {
    write_tar("d.tar");
    EXPECT_EQ(std::system(("gzip " + folder.path("d.tar")).c_str()), 0);
    return data("compressed tar", Type::webdataset, folder.path("d.tar.gz"));
  }

  Data parquet() const {
    using Field = ParquetField;
    ParquetWriter writer(folder.path("e.parquet"), {{"jpg", Field::Type::bytes}, {"caption", Field::Type::text}}, 20);
    for (std::uint64_t i = 0; i < rows; ++i)
      writer.write({std::string(3000, 'J'), i % 7 == 3 ? Cell() : Cell(fmt::format("caption {}", i))});
    writer.commit();
    return data("Parquet", Type::parquet, folder.path("e.parquet"));
  }

  Data list(const std::string& suffix) const {
    const bool json = suffix == "jsonl";
    std::string text = json ? "" : "image,caption,key\n";
    for (std::uint64_t i = 0; i < rows; ++i)
      text += fmt::format(fmt::runtime(json ? R"({{"image": "{0}.jpg", "caption": "{1}", "key": {0}}})"
                                              "\n"
                                            : "{0}.jpg,{1},{0}\n"),
                          i % 9, std::string(3000, 'c'));
    folder.write("f." + suffix, text);
    return data(suffix, Type::csv, folder.path("f." + suffix));
  }

  Data cache() const {
    const fs::path path = folder.path("cache");
    const CacheDescription description{{{"made_with", "a test"}}, shape, std::vector<std::uint16_t>(6, 7)};
    write_cache_description(path, description);
    Archive archive{.path = "x.tar", .name = "x", .bytes = 0, .seekable = true, .rows = rows, .limit = {}};
    for (std::uint64_t first = 0; first < rows; first += rows / 2) {
      LatentFileWriter writer(path, archive, description);
      for (std::uint64_t row = first; row < first + rows / 2; ++row) {
        const std::vector<std::uint16_t> moments(32, static_cast<std::uint16_t>(row)), text(6, 1);
        if (row % 7 == 3) {
          writer.reject(row, RejectReason::too_small);
        } else {
          writer.add({row, fmt::format("x/{}", row), std::string(2000, 'c'), moments, text, true});
        }
      }
      writer.publish();
    }
    CacheManifest cached;
    cached.entries.push_back({archive, rows, false});
    write_cache_manifest(path, cached);
    const auto manifest = std::make_shared<Manifest>(make_latent_manifest(path, std::nullopt));
    return {"latent cache", *manifest,
            [=] { return make_cached_source(path, *manifest, nullptr, CachedValues::full); }};
  }

  Data latent_table() const {
    const fs::path golden = test::data_dir() / "latents/nested.parquet", path = folder.path("g.parquet");
    fs::copy_file(golden, path);
    SourceConfig config;
    config.type = Type::latents;
    config.path = {path.string()};
    const auto manifest = std::make_shared<Manifest>(make_manifest(config, false));
    return {"Parquet of latents", *manifest, [=] {
              return make_latent_table_source(config, *manifest, {shape, 16, 0.18215, 0});
            }};
  }

  const TempFolder folder;
};

// A read of each source that fails at a place of its own, in the pass for the index, while a reader finds its first
// row, or in the middle: with all splits and resumed readers.
TEST_F(Storage, RowsAreThoseOfAStraightReadWhereverItFails) {
  for (const Data& data :
       {tar(), damaged(), indexed(), compressed(), parquet(), list("csv"), list("jsonl"), cache(), latent_table()}) {
    const std::uint32_t most_splits = data.splits ? 3 : 1;
    for (unsigned seed = 0; seed < 6; ++seed) {
      std::mt19937 random(seed);
      const std::uint32_t count = 1 + random() % most_splits, index = random() % count;
      const std::uint64_t first = random() % 2 ? random() % (rows / count) : 0;
      const Split split{0, index, count};
      const auto read = [&](const SampleSource& source) { return rows_of(source, split, first); };
      // The cache's constructor belongs to the start of a run.
      const auto straight_source = data.open(), source = data.open();
      const std::string& path = data.manifest.archives[0].path;
      Fault fault{.parts = data.name == "latent cache" ? folder.path("cache/rows") : path};
      fault.at = seed % 3 == 2 ? Fault::At::open : Fault::At::read;
      // ESTALE and EIO for storage, the others for a ticket that has run out and for too many open files.
      fault.code =
          fault.at == Fault::At::open ? (seed == 2 ? EMFILE : ESTALE) : std::array{EIO, EACCES, EKEYEXPIRED}[seed % 3];
      inject(fault);
      const auto expected = read(*straight_source);
      const std::int64_t calls = fault_calls();
      ASSERT_GT(calls, 0) << data.name;
      for (const std::int64_t after : {std::int64_t{0}, static_cast<std::int64_t>(random() % calls), calls - 1}) {
        const auto fresh = data.open();
        if (data.name == "tar with its index kept") fs::remove(folder.path(".c.tar.millrace-index"));
        fault.after = after;
        fault.calls = 1 + seed % 2;
        inject(fault);
        StorageRetry retry(Seconds(20));
        EXPECT_EQ(read(RetryingSource(*fresh, retry)), expected)
            << data.name << ", seed " << seed << ", call " << after << " of " << calls;
        EXPECT_GT(fault_failures(), 0) << data.name << ", seed " << seed << ", call " << after << " of " << calls;
        clear_fault();
      }
    }
  }
}

TEST_F(Storage, ACommandThatFailsInTheMiddleIsRunAgain) {
  write_tar("a.tar");
  const std::string whole = "cat " + folder.path("a.tar"), flag = folder.path("failed");
  const auto expected = [&] {
    const Data straight = data("pipe", Type::webdataset, "pipe:" + whole);
    return rows_of(*straight.open(), {0, 0, 1}, 0);
  }();
  const Data failing =
      data("pipe", Type::webdataset,
           fmt::format("pipe:if test -f {0}; then {1}; else touch {0}; {1} | head -c 60000; exit 3; fi", flag, whole));
  for (const std::uint64_t first : {0, 5, 40}) {
    fs::remove(flag);
    StorageRetry retry(Seconds(20));
    const auto source = failing.open();
    EXPECT_EQ(rows_of(RetryingSource(*source, retry), {0, 0, 1}, first),
              std::vector<std::string>(expected.begin() + static_cast<std::ptrdiff_t>(first), expected.end()));
    EXPECT_TRUE(fs::exists(flag));
  }
}

// It fails behind the same rows, whenever it is run: that is the archive.
TEST_F(Storage, ACommandThatAlwaysFailsAtOnePlaceIsABrokenArchive) {
  write_tar("a.tar");
  const Data broken =
      data("pipe", Type::webdataset, fmt::format("pipe:head -c 60000 {}; exit 3", folder.path("a.tar")));
  const auto source = broken.open();
  StorageRetry retry(Seconds(20));
  const auto found = rows_of(RetryingSource(*source, retry), {0, 0, 1}, 0);
  ASSERT_GT(found.size(), 3u);
  EXPECT_THAT(found.back(), HasSubstr(":archive_error"));
  EXPECT_THAT(found[found.size() - 2], testing::Not(HasSubstr(":archive_error")));
  // A checkpoint may lie anywhere, behind the failure too.
  for (const std::size_t first : {found.size() - 1, found.size()})
    EXPECT_EQ(rows_of(RetryingSource(*source, retry), {0, 0, 1}, first),
              std::vector<std::string>(found.begin() + static_cast<std::ptrdiff_t>(first), found.end()));
  StorageRetry impatient(Seconds(1));
  EXPECT_THROW(rows_of(RetryingSource(*source, impatient), {0, 0, 1}, found.size() + 1), Error)
      << "it fails before the rows that were there";
}

// Of the images that a list names some may be closed for good; a ticket that has run out closes all of them.
TEST_F(Storage, AnImageIsMissingWhereItIsClosedNotWhereATicketHasRunOut) {
  folder.write("x.jpg", "J");
  const std::string path = folder.path("x.jpg");
  inject({.parts = path, .code = EACCES, .at = Fault::At::open, .calls = 1});
  EXPECT_EQ(std::get<LoadFailure>(load_image(path, 100)).reason, RejectReason::missing_image);
  for (const int code : {EKEYEXPIRED, ENOKEY}) {
    inject({.parts = path, .code = code, .at = Fault::At::open, .calls = 1});
    EXPECT_THROW(load_image(path, 100), RefusedError);
  }
  EXPECT_EQ(std::get<std::string>(load_image(path, 100)), "J");
}

// Behind a mount that is gone all are missing, and behind a ticket that has run out all are closed.
TEST_F(Storage, AnImageIsNotMissingWhereWhatWasReadBeforeIsGoneToo) {
  folder.write("x.jpg", "J");
  const std::string path = folder.path("x.jpg"), other = folder.path("y.jpg");
  LastFiles last;
  EXPECT_EQ(std::get<LoadFailure>(load_image(other, 100, &last)).reason, RejectReason::missing_image);
  EXPECT_EQ(std::get<std::string>(load_image(path, 100, &last)), "J");
  EXPECT_EQ(std::get<LoadFailure>(load_image(other, 100, &last)).reason, RejectReason::missing_image);
  std::filesystem::rename(path, path + ".away");
  EXPECT_THROW(load_image(other, 100, &last), StorageError);
  EXPECT_THROW(load_image(path, 100, &last), StorageError);
  std::filesystem::rename(path + ".away", path);
  EXPECT_EQ(std::get<std::string>(load_image(path, 100, &last)), "J");
  EXPECT_EQ(std::get<LoadFailure>(load_image(other, 100, &last)).reason, RejectReason::missing_image);
}

TEST_F(Storage, AnImageIsNotMissingWhereItsStorageIsAway) {
  folder.write("x.jpg", "J");
  const std::string path = folder.path("x.jpg");
  inject({.parts = path, .code = ESTALE, .at = Fault::At::stat, .calls = 1});
  EXPECT_THROW(load_image(path, 100), StorageError);
  for (const int code : {EAGAIN, ENOMEM, ECANCELED, ENODEV}) {
    inject({.parts = path, .code = code, .at = Fault::At::open, .calls = 1});
    EXPECT_THROW(load_image(path, 100), StorageError) << code;
  }
  EXPECT_EQ(std::get<std::string>(load_image(path, 100)), "J");
}

TEST_F(Storage, AFileIsOpenedAgainWhereASignalCameInBetween) {
  folder.write("x.jpg", "J");
  const std::string path = folder.path("x.jpg");
  inject({.parts = path, .code = EINTR, .at = Fault::At::open, .calls = 2});
  EXPECT_EQ(std::get<std::string>(load_image(path, 100)), "J");
  inject({.parts = path, .code = EINTR, .at = Fault::At::open, .calls = 2});
  EXPECT_EQ(read_file(path), "J");
}

TEST_F(Storage, WhatStaysAwayForTooLongEndsTheRunAndIsNamed) {
  for (const Data& data : {tar(), compressed(), parquet(), list("csv"), cache()}) {
    const auto source = data.open();
    inject({.parts = folder.path(""), .seconds = 1000});
    StorageRetry retry(Seconds(0.3));
    try {
      rows_of(RetryingSource(*source, retry), {0, 0, 1}, 0);
      ADD_FAILURE() << data.name;
    } catch (const Error& error) {
      EXPECT_EQ(dynamic_cast<const StorageError*>(&error), nullptr) << "it would be tried again";
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_THAT(error.what(),
                  HasSubstr(data.name == "latent cache" ? folder.path("cache") : data.manifest.archives[0].path));
      EXPECT_THAT(error.what(), HasSubstr("EIO"));
      EXPECT_THAT(error.hint(), HasSubstr("data.retry_for"));
    }
    clear_fault();
  }
}

// A steady clock counts to 292 years.
TEST_F(Storage, MayStayAwayForLongerThanAClockCounts) {
  const Data data = tar();
  const auto expected = rows_of(*data.open(), {0, 0, 1}, 0);
  const auto source = data.open();
  inject({.parts = "a.tar", .calls = 1});
  StorageRetry retry(Seconds(1e12));
  EXPECT_EQ(rows_of(RetryingSource(*source, retry), {0, 0, 1}, 0), expected);
  EXPECT_EQ(fault_failures(), 1);
}

// Taken away in the middle, after the start has seen it: what is not there says nothing about bytes.
TEST_F(Storage, AnArchiveThatIsGoneEndsTheRunAtOnce) {
  for (const Data& data : {tar(), indexed(), compressed(), parquet(), list("csv"), list("jsonl"), latent_table()}) {
    const std::string& path = data.manifest.archives[0].path;
    const auto source = data.open();
    StorageRetry retry(Seconds(1000));
    const RetryingSource patient(*source, retry);
    const auto reader = patient.open({0, 0, 1}, 0);
    ASSERT_TRUE(reader->next()) << data.name;
    fs::rename(path, path + ".away");
    try {
      rows_of(patient, {0, 0, 1}, 1);
      ADD_FAILURE() << data.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_THAT(error.what(), HasSubstr("cannot open " + path + ": No such file or directory")) << data.name;
      EXPECT_THAT(error.hint(), HasSubstr("take it out of the data's path")) << data.name;
    }
  }
}

TEST_F(Storage, OneWarningAndOneWordWhenItIsBack) {
  const Data data = tar();
  const auto source = data.open();
  log::init({.console = false, .file = folder.path("log")});
  inject({.parts = "a.tar", .after = 1, .calls = 3});
  {
    StorageRetry retry(Seconds(300));
    rows_of(RetryingSource(*source, retry), {0, 0, 1}, 0);
  }
  log::init({});
  const std::string text = read_file(folder.path("log")), path = folder.path("a.tar");
  EXPECT_THAT(text, HasSubstr(" warning " + path + ": read failed: EIO; trying again for up to 5 min\n"));
  EXPECT_THAT(text, HasSubstr(" info " + path + ": can be read again, after 0."));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

TEST_F(Storage, AStopEndsTheWaitingAtOnce) {
  const Data data = tar();
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // which starts threads: ThreadSanitizer takes none behind a fork
  EXPECT_EXIT(
      {
        const auto source = data.open();
        inject({.parts = "a.tar", .seconds = 1000});
        StorageRetry retry(Seconds(100));
        std::jthread signal([] {
          while (fault_failures() == 0) std::this_thread::yield();
          stop::request(SIGTERM);
        });
        const auto begun = std::chrono::steady_clock::now();
        try {
          rows_of(RetryingSource(*source, retry), {0, 0, 1}, 0);
        } catch (const ReadingStopped& error) {
          const bool soon = std::chrono::steady_clock::now() - begun < std::chrono::seconds(10);
          std::exit(soon ? static_cast<int>(error.exit()) : 1);
        }
      },
      testing::ExitedWithCode(static_cast<int>(Exit::requeue)), "");
}

// A fault must not make a plan of fewer rows.
TEST_F(Storage, ThePlanIsThatOfAStraightStart) {
  write_tar("a.tar");
  write_tar("b.tar");
  DataConfig config;
  config.train.path = {folder.path("a.tar"), folder.path("b.tar")};
  for (const std::optional<std::int64_t> limit : {std::optional<std::int64_t>(), std::optional<std::int64_t>(70)}) {
    config.train.limit = limit;
    const auto expected = to_bytes(make_data_plan(config.train, config, 8));
    inject({.parts = "b.tar"});
    make_data_plan(config.train, config, 8);
    const std::int64_t calls = fault_calls();
    for (const std::int64_t after : {std::int64_t{0}, calls / 2, calls - 1}) {
      inject({.parts = "b.tar", .after = after, .calls = 1});
      EXPECT_EQ(to_bytes(make_data_plan(config.train, config, 8)), expected) << "read " << after << " of " << calls;
      EXPECT_EQ(fault_failures(), 1);
      clear_fault();
    }
    config.retry_for = Duration::seconds(0);
    inject({.parts = "b.tar", .seconds = 1000});  // a limit counts ahead, and looks again where that failed
    EXPECT_THROW(make_data_plan(config.train, config, 8), Error);
    clear_fault();
    config.retry_for = Duration::seconds(300);
  }
}

class StorageStream : public Storage {
 protected:
  // Lists of images, one of them missing and one no image, and a tar whose end is damaged.
  StorageStream() {
    const std::string image = small_jpeg();
    std::string text = "image,caption\n";
    for (int i = 0; i < 24; ++i) {
      text += fmt::format("{}.jpg,caption {}\n", i, i);
      if (i != 5) folder.write(fmt::format("{}.jpg", i), i == 9 ? "no image" : image);
    }
    folder.write("images.csv", text);
    std::vector<TarSample> samples;
    for (int i = 0; i < 40; ++i)
      samples.push_back(test::sample(fmt::format("{:02}", i), i % 10 == 4 ? "no image" : image, "caption"));
    folder.write_tar("images.tar", samples);
    fs::resize_file(folder.path("images.tar"), fs::file_size(folder.path("images.tar")) - 30'000);
  }

  // Ids in the order of two stripes, then the ledger.
  std::string read(Type type, const std::string& name, Seconds retry_for = Seconds(20)) const {
    DataConfig config;
    config.train.type = type;
    config.train.path = {folder.path(name)};
    config.stripes = config::Auto<int>(2);
    const DataPlan plan = make_data_plan(config.train, config, 2);
    const EpochOrder order(1, plan.stripes);
    const auto source = make_source(config.train, plan.manifest, 16);
    TransformPipeline transforms;
    transforms.transform.resolution = 8;
    StripeStream stream(order, *source, transforms, {.threads = 3, .block = 5, .epochs = 1, .retry_for = retry_for});
    std::string told;
    Ledger ledger(plan);
    for (const std::uint32_t stripe : {0u, 1u}) stream.add(stripe, {});
    for (const std::uint32_t stripe : {0u, 1u}) {
      while (const auto sample = stream.next(stripe)) told += sample->ref.id + "\n";
      ledger.merge(stream.take_ledger_delta(stripe));
    }
    return told + ledger.report_json();
  }
};

TEST_F(StorageStream, OrderAndLedgerAreThoseOfAStraightRead) {
  const struct {
    Type type;
    std::string name, parts;
    std::vector<std::string> reasons;
  } cases[] = {{Type::csv, "images.csv", "/images.csv|.jpg", {"missing_image", "not_an_image"}},
               {Type::webdataset, "images.tar", "/images.tar", {"archive_error", "not_an_image"}}};
  for (const auto& [type, name, parts, reasons] : cases) {
    inject({.parts = folder.path("").substr(0, folder.path("").size() - 1)});
    const std::string expected = read(type, name);
    const auto calls = fault_calls();
    for (const std::string& reason : reasons) EXPECT_THAT(expected, HasSubstr("\"" + reason + "\""));
    for (unsigned seed = 0; seed < 8; ++seed) {
      std::mt19937 random(seed);
      inject({.parts = parts,
              .after = static_cast<std::int64_t>(random() % (calls / 2)),
              .calls = static_cast<std::int64_t>(1 + random() % 3)});
      EXPECT_EQ(read(type, name), expected) << name << ", seed " << seed;
      EXPECT_GT(fault_failures(), 0) << name << ", seed " << seed;
      clear_fault();
    }
  }
}

TEST_F(StorageStream, WhatStaysAwayComesOutOfNext) {
  inject({.parts = "/11.jpg", .seconds = 1000});
  try {
    read(Type::csv, "images.csv", Seconds(0.2));
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), HasSubstr(folder.path("11.jpg") + ": read failed for 0.2 s: EIO"));
  }
}

TEST_F(StorageStream, WhatStaysAwayIsNoAcceptedSample) {
  DataConfig config;
  config.train.type = Type::csv;
  config.train.path = {folder.path("images.csv")};
  const DataPlan plan = make_data_plan(config.train, config, 1);
  const EpochOrder order(1, plan.stripes);
  const auto source = make_source(config.train, plan.manifest, 16);
  inject({.parts = ".jpg", .seconds = 1000});
  StripeStream stream(order, *source, {}, {.threads = 2, .block = 24, .epochs = 1, .retry_for = Seconds(0.2)});
  stream.add(0, {});
  EXPECT_THROW(stream.next(0), Error);
  EXPECT_EQ(stream.statistics().accepted, 0);
}

TEST_F(StorageStream, ItsEndEndsTheWaitingAtOnce) {
  DataConfig config;
  config.train.path = {folder.path("images.tar")};
  const DataPlan plan = make_data_plan(config.train, config, 1);
  const EpochOrder order(1, plan.stripes);
  const auto source = make_source(config.train, plan.manifest, 16);
  std::chrono::steady_clock::duration taken = std::chrono::hours(1);
  for (int time = 0; time < 3 && taken >= std::chrono::seconds(5); ++time) {  // one may meet a pause of this machine
    inject({.parts = "/images.tar", .seconds = 1000});
    std::chrono::steady_clock::time_point begun;
    {
      StripeStream stream(order, *source, {}, {.threads = 1, .block = 1, .retry_for = Seconds(1000)});
      stream.add(0, {});
      stream.expect(0);
      // By then a pause is longer than six seconds.
      while (fault_failures() < 8) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      begun = std::chrono::steady_clock::now();
    }
    taken = std::chrono::steady_clock::now() - begun;
  }
  EXPECT_LT(taken, std::chrono::seconds(5));
}

// Whoever takes samples sits in next() when it is told that no more are wanted.
TEST_F(StorageStream, WhoWaitsInNextCanBeTold) {
  DataConfig config;
  config.train.path = {folder.path("images.tar")};
  const DataPlan plan = make_data_plan(config.train, config, 1);
  const EpochOrder order(1, plan.stripes);
  const auto source = make_source(config.train, plan.manifest, 16);
  inject({.parts = "/images.tar", .seconds = 1000});
  StripeStream stream(order, *source, {}, {.threads = 1, .block = 1, .retry_for = Seconds(1000)});
  stream.add(0, {});
  std::jthread owner([&] {
    while (fault_failures() == 0) std::this_thread::yield();
    stream.end_retries();
  });
  EXPECT_THROW(stream.next(0), ReadingStopped);
}

// A whole tar, cut by storage, and one that is cut: only the second is the archive's fault.
TEST_F(Storage, OnlyDamageIsWhatATarReaderCallsBroken) {
  write_tar("a.tar");
  inject({.parts = "a.tar", .after = 2, .seconds = 1000});
  TarReader reader(folder.path("a.tar"));
  EXPECT_THROW(
      {
        while (reader.next()) continue;
      },
      StorageError);
  EXPECT_FALSE(reader.error());
  clear_fault();
  fs::resize_file(folder.path("a.tar"), 100'000);
  TarReader cut(folder.path("a.tar"));
  while (cut.next()) continue;
  EXPECT_TRUE(cut.error());
}

}  // namespace
}  // namespace millrace
