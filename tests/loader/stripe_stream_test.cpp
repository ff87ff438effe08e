#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "dataset/fake_source.h"
#include "dataset/temp_archives.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/philox.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/enlarged_watch.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/sample_loader.h"
#include "millrace/loader/stripe_stream.h"

namespace millrace {
namespace {

using test::FakeSource;
using test::PlainStripe;
using test::Rows;
using test::small_jpeg;

FakeSource make_fake(unsigned seed, std::size_t archives, std::size_t rows) {
  std::mt19937 random(seed);
  std::vector<Rows> content(archives);
  for (auto& archive : content) {
    archive.resize(rows);
    for (auto& row : archive) {
      constexpr RejectReason reasons[] = {RejectReason::missing_caption, RejectReason::filtered,
                                          RejectReason::not_an_image};
      if (random() % 4 == 0) row = reasons[random() % 3];
    }
  }
  return FakeSource(std::move(content), small_jpeg());
}

TransformPipeline small_images() {
  TransformPipeline transforms;
  transforms.transform.resolution = 8;
  return transforms;
}

DataPlan plan_for(const FakeSource& source, int batch) {
  return {source.manifest(), plan_stripes(batch, {}, source.manifest())};
}

// Rows without end, all of which the filters drop.
struct DroppedRows final : SampleSource {
  struct Reader final : SplitReader {
    std::optional<RawRow> next() override { return Rejected{SampleRef(), RejectReason::filtered, ""}; }
  };
  std::unique_ptr<SplitReader> open(const Split&, std::uint64_t) const override { return std::make_unique<Reader>(); }
};

TEST(StripeStream, WaitingEndsWhereNoSampleComes) {
  const EpochOrder order(1, {1, {{0, 0, 1}}});
  const DroppedRows source;
  StripeStream stream(order, source, {}, {.threads = 1, .block = 1, .epochs = 1});
  stream.add(0, {});
  EXPECT_FALSE(stream.wait(0, 0.2));
}

// next() gives what it would have given without.
TEST(StripeStream, WaitingTakesNothing) {
  const FakeSource source = make_fake(7, 3, 20);
  const DataPlan plan = plan_for(source, 1);
  const EpochOrder order(1, plan.stripes);
  const auto read = [&](bool wait) {
    StripeStream stream(order, source, small_images(), {.threads = 2, .block = 4, .epochs = 1});
    stream.add(0, {});
    Ledger ledger(plan);
    std::string told;
    while (true) {
      if (wait) {
        EXPECT_TRUE(stream.wait(0, 100));
      }
      const auto sample = stream.next(0);
      ledger.merge(stream.take_ledger_delta(0));
      if (!sample) return told + ledger.report_json();
      told += sample->ref.id + "\n";
    }
  };
  EXPECT_EQ(read(true), read(false));
}

int lines_of_enlarging(const std::string& log) {
  log::flush();
  int count = 0;
  const std::string text = read_file(log), words = "and are enlarged";
  for (auto at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
  return count;
}

TEST(EnlargedWatch, WarnsOnceWhereMostImagesAreSmallerThanTheTrainingImages) {
  const test::TempFolder folder;
  const std::string file = folder.path("log");
  log::init({"", 0, false, file});
  const auto count = [](EnlargedWatch& watch, int images, int width, int height) {
    for (int i = 0; i < images; ++i) watch.count({width, height, {}}, 512);
  };
  EnlargedWatch half;
  count(half, 500, 256, 800);
  count(half, 500, 512, 512);
  count(half, 2000, 256, 256);
  EXPECT_EQ(lines_of_enlarging(file), 0);
  EnlargedWatch most;
  count(most, 399, 512, 513);
  count(most, 600, 800, 511);
  EXPECT_EQ(lines_of_enlarging(file), 0);
  count(most, 1, 511, 800);
  EXPECT_EQ(lines_of_enlarging(file), 1);
  EXPECT_THAT(read_file(file), testing::HasSubstr("60 % of the first 1000 images are smaller than transform.resolution "
                                                  "= 512 and are enlarged; in a new run data.images.min_side = 512"));
  count(most, 2000, 511, 800);
  EXPECT_EQ(lines_of_enlarging(file), 1);

  // Images of 16 x 16; those that cannot be decoded count for nothing.
  std::vector<Rows> rows(1, Rows(1200));
  for (std::size_t i = 0; i < 100; ++i) rows[0][i] = RejectReason::not_an_image;
  const FakeSource source(rows, small_jpeg());
  const EpochOrder order(1, {1, {{0, 0, 1}}});
  for (const int resolution : {16, 17}) {
    EnlargedWatch watch;
    auto transforms = small_images();
    transforms.transform.resolution = resolution;
    transforms.enlarged_watch = &watch;
    StripeStream stream(order, source, transforms, {.threads = 3, .block = 4, .epochs = 1});
    stream.add(0, {});
    while (stream.next(0)) continue;
    EXPECT_EQ(lines_of_enlarging(file), resolution == 16 ? 1 : 2);
  }
  log::init({});
}

// Producers with any share of the stripes and any number of threads, killed and started again from the last sample
// used, give what one plain reader gives, and the ledger is the same.
TEST(StripeStream, EqualsThePlainReaderWhoeverReadsAndWheneverItIsKilled) {
  const FakeSource source = make_fake(1, 5, 37);
  const DataPlan plan = plan_for(source, 6);
  const EpochOrder order(420, plan.stripes);
  for (unsigned seed = 0; seed < 6; ++seed) {
    std::mt19937 random(seed);
    const std::uint32_t stripes = plan.stripes.stripes;
    const std::uint32_t block = seed % 3 ? 1 + random() % 8 : 128;  // also more than a stripe's epoch has
    std::vector<PlainStripe> expected;
    for (std::uint32_t s = 0; s < stripes; ++s) expected.emplace_back(order, source, s, block, StripeCursor{});
    std::vector<StripeCursor> cursors(stripes);
    Ledger ledger(plan);
    std::set<std::string> ids;
    for (int life = 0; life < 4; ++life) {
      const unsigned producers = 1 + random() % 3;
      const StreamOptions options{.threads = 1 + static_cast<int>(random() % 3), .block = block};
      const unsigned ahead = random() % 6;
      std::vector<std::unique_ptr<StripeStream>> streams;
      for (unsigned p = 0; p < producers; ++p)
        streams.push_back(std::make_unique<StripeStream>(order, source, small_images(), options));
      for (std::uint32_t s = 0; s < stripes; ++s) {
        streams[s % producers]->add(s, cursors[s]);
        for (unsigned i = 0; i < ahead; ++i) streams[s % producers]->expect(s);
      }
      const int samples = 1 + random() % 40;
      for (int i = 0; i < samples; ++i) {
        for (std::uint32_t s = 0; s < stripes; ++s) {
          if (ahead) streams[s % producers]->expect(s);
          const auto sample = streams[s % producers]->next(s);
          const SampleRef wanted = expected[s].next();
          ASSERT_TRUE(sample.has_value());
          ASSERT_EQ(sample->ref.id, wanted.id) << "seed " << seed << " life " << life;
          ASSERT_EQ(sample->ref.epoch, wanted.epoch);
          ASSERT_EQ(sample->ref.stripe, s);
          ASSERT_EQ(sample->ref.after, wanted.after);
          ASSERT_EQ(sample->image.width, 8);
          ASSERT_EQ(sample->caption, wanted.id);
          cursors[s] = sample->ref.after;
          ledger.merge(streams[s % producers]->take_ledger_delta(s));
          ids.insert(sample->ref.id);
        }
        // A stripe that is ahead gets rows in its second epoch that another one has not come to in its first.
        ASSERT_EQ(ledger.total().accepted, ids.size()) << "seed " << seed << " life " << life;
      }
    }
    const std::uint32_t epochs = std::min_element(cursors.begin(), cursors.end(), [](const auto& a, const auto& b) {
                                   return a.epoch < b.epoch;
                                 })->epoch;
    if (epochs == 0) continue;
    EXPECT_EQ(ledger.total().rows(), 5u * 37u) << "seed " << seed;
    EXPECT_EQ(ledger.total().accepted, source.accepted());
  }
}

TEST(StripeStream, OnePassEndsAndTheLedgerHasEveryRow) {
  const FakeSource source = make_fake(2, 3, 20);
  const DataPlan plan = plan_for(source, 4);
  const EpochOrder order(1, plan.stripes);
  StripeStream stream(order, source, small_images(), {.threads = 2, .block = 3, .epochs = 1});
  Ledger ledger(plan);
  std::set<std::string> ids;
  for (std::uint32_t s = 0; s < 4; ++s) stream.add(s, {});
  for (std::uint32_t s = 0; s < 4; ++s) {
    while (const auto sample = stream.next(s)) EXPECT_TRUE(ids.insert(sample->ref.id).second);
    EXPECT_FALSE(stream.next(s).has_value());
    for (LedgerDelta delta = stream.take_ledger_delta(s, 100); !delta.empty(); delta = stream.take_ledger_delta(s, 100))
      ledger.merge(delta);
  }
  EXPECT_EQ(ids.size(), source.accepted());
  EXPECT_EQ(ledger.total().accepted, source.accepted());
  EXPECT_EQ(ledger.total().rows(), 60u);
  const StreamStatistics statistics = stream.statistics();
  EXPECT_EQ(statistics.rows, 60u);
  EXPECT_EQ(statistics.accepted, source.accepted());
  EXPECT_EQ(statistics.threads, 2);
  EXPECT_GT(statistics.busy.read, 0);
  EXPECT_GT(statistics.busy.decode, 0);
  EXPECT_GT(statistics.busy.transform, 0);
  EXPECT_LE(statistics.busy.total(), 2 * statistics.seconds);
}

// Counts the rows that leave each archive.
class CountedRows final : public SampleSource {
 public:
  explicit CountedRows(const FakeSource& rows) : rows_(rows), read_(rows.manifest().archives.size()) {}

  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    return std::make_unique<Reader>(rows_.open(split, first_row), read_[split.archive]);
  }
  std::size_t read(std::size_t archive) const { return read_[archive]; }

 private:
  struct Reader final : SplitReader {
    Reader(std::unique_ptr<SplitReader> rows, std::atomic<std::size_t>& read) : rows(std::move(rows)), read(read) {}
    std::optional<RawRow> next() override {
      auto row = rows->next();
      read += row.has_value();
      return row;
    }
    std::unique_ptr<SplitReader> rows;
    std::atomic<std::size_t>& read;
  };

  const FakeSource& rows_;
  mutable std::vector<std::atomic<std::size_t>> read_;
};

template <class Condition>
bool comes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  return condition();
}

// No more rows are read than a block and what is expected, and no more samples prepared than that; a stripe that nobody
// expects anything of is not read at all.
TEST(StripeStream, MemoryIsBounded) {
  constexpr std::size_t block = 40, expected = 7, others = 200;
  const FakeSource rows(std::vector<Rows>(2, Rows(1000)), small_jpeg());
  const CountedRows source(rows);
  const DataPlan plan{rows.manifest(), {2, {{0, 0, 1}, {1, 0, 1}}}};
  const EpochOrder order(1, plan.stripes);
  StripeStream stream(order, source, small_images(), {.threads = 2, .block = block});
  for (const std::uint32_t stripe : {0u, 1u}) stream.add(stripe, {});
  for (std::size_t i = 0; i < expected; ++i) stream.expect(0);
  const std::size_t archive = stream.next(0)->ref.id.substr(0, 3) == "000" ? 0 : 1;
  ASSERT_TRUE(comes_true([&] {
    return stream.statistics().accepted == expected && source.read(archive) == block + expected;
  })) << stream.statistics().accepted
      << " samples of " << source.read(archive) << " rows";
  EXPECT_EQ(source.read(1 - archive), 0u);

  // Jobs are done in the order in which they come up: if there were more to do for stripe 0, stripe 1 would not get to
  // this many samples without it.
  for (std::size_t i = 0; i < others; ++i) ASSERT_TRUE(stream.next(1).has_value());
  EXPECT_EQ(source.read(archive), block + expected);
  EXPECT_EQ(stream.statistics().accepted, expected + others);
}

// Whatever it looks ahead, a reader by turns gives whole parcels in turn, and at the end every sample once.
TEST(InterleavedReader, GivesParcelsInTurnToTheEnd) {
  const FakeSource source = make_fake(6, 3, 20);
  const DataPlan plan = plan_for(source, 3);
  const EpochOrder order(1, plan.stripes);
  std::vector<std::string> first_order;
  for (const int ahead : {1, 5, 100}) {
    StripeStream stream(order, source, small_images(), {.threads = 2, .block = 3, .epochs = 1});
    for (const std::uint32_t stripe : {0u, 1u, 2u}) stream.add(stripe, {});
    InterleavedReader reader(stream, {0, 1, 2}, {.samples_per_step = 4}, ahead);
    std::vector<std::string> order;
    for (auto sample = reader.next(); sample; sample = reader.next()) {
      if (order.size() < 24) {
        EXPECT_EQ(sample->ref.stripe, order.size() / 4 % 3);
      }
      order.push_back(sample->ref.id);
    }
    EXPECT_EQ(std::set(order.begin(), order.end()).size(), source.accepted());
    EXPECT_EQ(order.size(), source.accepted());
    if (first_order.empty()) first_order = order;
    EXPECT_EQ(order, first_order);
  }
}

TEST(StripeStream, AStripeMovesToAnotherProducer) {
  const FakeSource source = make_fake(4, 4, 25);
  const DataPlan plan = plan_for(source, 2);
  const EpochOrder order(9, plan.stripes);
  const StreamOptions options{.threads = 1, .block = 4};
  StripeStream first(order, source, small_images(), options), second(order, source, small_images(), options);
  PlainStripe expected(order, source, 0, 4, {});
  first.add(0, {});
  StripeCursor cursor;
  for (int i = 0; i < 7; ++i) {
    const auto sample = first.next(0);
    EXPECT_EQ(sample->ref.id, expected.next().id);
    cursor = sample->ref.after;
  }
  second.add(0, cursor);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(second.next(0)->ref.id, expected.next().id);
}

TEST(StripeStream, NothingToAcceptIsAnErrorWithTheReasons) {
  const Rows bad(5, RejectReason::missing_caption);
  const FakeSource source({bad, bad, bad}, small_jpeg());
  const DataPlan plan = plan_for(source, 3);
  const EpochOrder order(1, plan.stripes);
  StripeStream stream(order, source, small_images(), {.threads = 1, .block = 2});
  stream.add(0, {});
  try {
    stream.next(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    EXPECT_THAT(error.what(), testing::HasSubstr("missing_caption"));
  }
}

// Nobody waits until one stripe has read all there is, as often as it takes: 20 archives are 40,000 rows.
// Images are found to be bad by the threads.
TEST(StripeStream, NothingToBeginWithIsAnErrorSoonerOfAllStripesTogether) {
  for (const auto& [reason, advice] : {std::pair(RejectReason::missing_caption, "data.train.columns.caption"),
                                       std::pair(RejectReason::not_an_image, "millrace inspect")}) {
    const FakeSource source(std::vector<Rows>(20, Rows(2'000, reason)), small_jpeg());
    const DataPlan plan = plan_for(source, 16);
    const EpochOrder order(1, plan.stripes);
    StripeStream stream(order, source, small_images(), {.threads = 2, .block = 16, .max_bad_share = 0.2});
    for (std::uint32_t s = 0; s < 16; ++s) {
      stream.add(s, {});
      stream.expect(s);
    }
    try {
      stream.next(0);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_data);
      EXPECT_THAT(error.what(), testing::StartsWith("data.train: none of the first 10"));
      EXPECT_THAT(error.what(), testing::HasSubstr(to_string(reason)));
      EXPECT_THAT(error.hint(), testing::HasSubstr(advice));
    }
    EXPECT_LT(stream.statistics().rows, 12'000u);
  }
}

// One archive whose rows are bad but for the last.
FakeSource late_sample() {
  Rows rows(12'000, RejectReason::missing_caption);
  rows.emplace_back();
  return FakeSource(std::vector<Rows>{rows}, small_jpeg());
}
const StripePlan one_stripe{1, {{0, 0, 1}}};

// It would end each start in the same place.
TEST(StripeStream, ARunThatHasFoundSamplesBeforeGoesOnThroughBadRows) {
  const FakeSource source = late_sample();
  const EpochOrder order(1, one_stripe);
  const StreamOptions options{.threads = 1, .block = 16, .max_bad_share = 0.2};
  StripeStream first(order, source, small_images(), options), resumed(order, source, small_images(), options);
  first.add(0, {});
  EXPECT_THROW(first.next(0), Error);
  resumed.add(0, {.row = 5});
  EXPECT_EQ(resumed.next(0)->ref.id, source.id(0, 12'000));
}

// Its rows all come to the ledger, which names the archives.
TEST(SampleLoader, APassThatEndsIsJudgedByTheLedgerAlone) {
  const FakeSource source = late_sample();
  const DataPlan plan{source.manifest(), one_stripe};
  TransformConfig transform;
  transform.resolution = 8;
  SampleLoader loader({}, transform, plan, {});
  StripeStream without_end = loader.start(source, {0}, {.threads = 1, .block = 16});
  EXPECT_THROW(without_end.next(0), Error);
  StripeStream pass = loader.start(source, {0}, {.threads = 1, .block = 16, .epochs = 1});
  EXPECT_EQ(pass.next(0)->ref.id, source.id(0, 12'000));
}

TEST(SampleLoader, TakesImagesAsTheConfigurationAsks) {
  const FakeSource source(std::vector<Rows>{Rows(4)}, small_jpeg());
  const DataPlan plan{source.manifest(), one_stripe};
  DataConfig data;
  data.images.min_side = 17;
  SampleLoader loader(data, {}, plan, {});
  StripeStream stream = loader.start(source, {0}, {.threads = 1, .block = 2, .epochs = 1});
  EXPECT_FALSE(stream.next(0).has_value());
  Ledger ledger(plan);
  ledger.merge(stream.take_ledger_delta(0));
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::too_small)], 4u);
}

// A JPEG of 16 x 16 pixels, black on the left and white on the right.
std::string black_and_white_jpeg() {
  Image image{16, 16, Pixels(std::size_t{16} * 16 * 3)};
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = i / 3 % 16 < 8 ? 0 : 255;
  return encode_jpeg(image, 90);
}

// docs/numerics.md
TEST(SampleLoader, FlipsByTheSeedTheSampleAndTheVisit) {
  const FakeSource source(std::vector<Rows>{Rows(30)}, black_and_white_jpeg());
  const DataPlan plan{source.manifest(), one_stripe};
  TransformConfig transform;
  transform.resolution = 8;
  transform.flip = 0.5;
  SampleLoader loader({}, transform, plan, {.seed = 420});
  StripeStream stream = loader.start(source, {0}, {.threads = 1, .block = 4, .epochs = 2});
  int samples = 0, flips = 0;
  for (auto sample = stream.next(0); sample; sample = stream.next(0), ++samples) {
    const RngKey key{.seed = 420, .sample = hash64(sample->ref.id), .epoch = sample->ref.epoch};
    const bool flipped = sample->image.pixels.front() > 127;
    EXPECT_EQ(flipped, uniform(key, Purpose::flip) < 0.5) << sample->ref.id << " at visit " << sample->ref.epoch;
    flips += flipped ? 1 : 0;
  }
  EXPECT_EQ(samples, 60);
  EXPECT_NEAR(flips, 30, 15);
}

TEST(SampleLoader, ReadsWithTheThreadsAndTheBlocksOfTheConfiguration) {
  DataConfig data;
  data.shuffle_block = 7;
  const StreamOptions of_this_rank = make_stream_options(data, 3);
  EXPECT_EQ(of_this_rank.block, 7u);
  EXPECT_EQ(of_this_rank.threads, 3);
  data.threads = {2};
  EXPECT_EQ(make_stream_options(data, 3).threads, 2);
}

TEST(StripeStream, RaisesTheLimitOfOpenFilesToWhatItsStripesTake) {
  constexpr std::uint32_t stripes = 300;
  const FakeSource source(std::vector<Rows>(stripes, Rows(1)));
  const DataPlan plan = plan_for(source, static_cast<int>(stripes));
  const EpochOrder order(1, plan.stripes);
  StripeStream stream(order, source, small_images(), {});
  rlimit before{}, raised{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  for (std::uint32_t stripe = 0; stripe < stripes; ++stripe) stream.add(stripe, {});
  EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &raised), 0);
  EXPECT_GE(raised.rlim_cur, std::min<rlim_t>(before.rlim_max, stripes));
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(StripeStream, EmptyArchivesAreAnErrorToo) {
  const FakeSource source(std::vector<Rows>(2));
  const EpochOrder order(1, {2, {{0, 0, 1}, {1, 0, 1}}});
  StripeStream stream(order, source, small_images(), {.threads = 1, .block = 2});
  stream.add(1, {});
  EXPECT_THROW(stream.next(1), Error);
}

// One good archive among broken ones: stripes that get none of it in an epoch, or in many, go on searching.
TEST(StripeStream, BrokenArchivesDoNotStopAStripeWhileThereIsAGoodOne) {
  const Rows broken(1, RejectReason::archive_error);
  const FakeSource source({broken, broken, Rows(6), broken}, small_jpeg());
  const DataPlan plan{source.manifest(), {4, {{0, 0, 1}, {1, 0, 1}, {2, 0, 1}, {3, 0, 1}}}};
  const EpochOrder order(5, plan.stripes);
  StripeStream stream(order, source, small_images(), {.threads = 1, .block = 2});
  for (std::uint32_t s = 0; s < 4; ++s) stream.add(s, {});
  for (int i = 0; i < 200; ++i) {
    for (std::uint32_t s = 0; s < 4; ++s) EXPECT_EQ(stream.next(s)->ref.id.substr(0, 3), "002");
  }
}

TEST(StripeStream, WhatIsNoImageIsRejected) {
  const FakeSource source(std::vector<Rows>{Rows(4)}, "<html>");
  const DataPlan plan = plan_for(source, 1);
  const EpochOrder order(1, plan.stripes);
  StripeStream stream(order, source, small_images(), {.threads = 1, .block = 1, .epochs = 1});
  stream.add(0, {});
  EXPECT_FALSE(stream.next(0).has_value());
  Ledger ledger(plan);
  ledger.merge(stream.take_ledger_delta(0));
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::not_an_image)], 4u);
}

class BrokenSource final : public SampleSource {
  std::unique_ptr<SplitReader> open(const Split&, std::uint64_t) const override { fail(Exit::io, "the disk is gone"); }
};

TEST(StripeStream, WhatStopsAWorkerComesOutOfNext) {
  const BrokenSource source;
  const EpochOrder order(1, {1, {{0, 0, 1}}});
  StripeStream stream(order, source, small_images(), {});
  stream.add(0, {});
  EXPECT_THROW(stream.next(0), Error);
}

TEST(StripeStream, EndsWhileItsWorkersAreBusy) {
  const FakeSource source = make_fake(5, 8, 200);
  const DataPlan plan = plan_for(source, 8);
  const EpochOrder order(1, plan.stripes);
  for (int i = 0; i < 5; ++i) {
    StripeStream stream(order, source, small_images(), {.threads = 3, .block = 50});
    for (std::uint32_t s = 0; s < 8; ++s) {
      stream.add(s, {});
      for (int n = 0; n < 100; ++n) stream.expect(s);
    }
    ASSERT_TRUE(comes_true([&] { return stream.statistics().accepted > 0; }));  // of 800 that it goes on preparing
  }
}

}  // namespace
}  // namespace millrace
