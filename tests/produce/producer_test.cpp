#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "dataset/fake_source.h"
#include "dataset/temp_archives.h"
#include "encoding_thread.h"
#include "error_of.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/handoff/in_process_handoff.h"
#include "millrace/loader/data_plan.h"
#include "millrace/nn/weights.h"
#include "millrace/produce/cache_filler.h"
#include "millrace/produce/cache_size.h"
#include "millrace/produce/encode_pipeline.h"
#include "millrace/produce/producer.h"
#include "millrace/text/tokenizer_folder.h"
#include "millrace/train/stages.h"
#include "parcels/unpack_parcel.h"
#include "test_data.h"

namespace millrace {
namespace {

using test::FakeSource;
using test::PlainStripe;
using test::unpack_parcel;

using IsBroken = std::function<bool(const std::string& id)>;

// Rows that bring their encodings, as a cache's do: moments of zeros, but not finite for broken ids.
class EncodedRows final : public SampleSource {
 public:
  EncodedRows(const FakeSource& rows, IsBroken is_broken) : rows_(rows), is_broken_(std::move(is_broken)) {}

  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
    return std::make_unique<Reader>(rows_.open(split, first_row), is_broken_);
  }

 private:
  struct Reader final : SplitReader {
    Reader(std::unique_ptr<SplitReader> rows, const IsBroken& is_broken)
        : rows(std::move(rows)), is_broken(is_broken) {}
    std::optional<RawRow> next() override {
      auto row = rows->next();
      if (!row || !std::holds_alternative<RawSample>(*row)) return row;
      EncodedSample sample;
      sample.ref = std::get<RawSample>(*row).ref;
      constexpr std::uint16_t half_nan = 0x7e00;
      sample.encoding.moments.assign(8, is_broken(sample.ref.id) ? half_nan : std::uint16_t{0});
      sample.encoding.text.assign(2, 0);
      return sample;
    }
    std::unique_ptr<SplitReader> rows;
    const IsBroken& is_broken;
  };

  const FakeSource& rows_;
  IsBroken is_broken_;
};

const EncodingShape tiny_shape{{8, 1, 1}, {1, 2}};

// Its batches are done when the test says: a GPU, as a producer sees it, or the CPU.
class SlowEncoder final : public CachedEncoder {
 public:
  enum class Done { at_once, when_collected, now_and_then };
  explicit SlowEncoder(Done done)
      : CachedEncoder(nullptr, nullptr, CacheUse::beside, tiny_shape, /*batch_size=*/5), done_(done) {}

  StartedEncoding start(std::vector<TransformedSample> samples) override {
    steps += fmt::format("start {}, ", started_++);
    EXPECT_LE(started_ - collected_, 2) << "memory for two batches";
    return CachedEncoder::start(std::move(samples));
  }
  bool is_done(const StartedEncoding&) const override {
    return done_ == Done::at_once || (done_ == Done::now_and_then && random_() % 8 == 0);
  }
  CheckedBatch collect(StartedEncoding started) override {
    steps += fmt::format("collect {}, ", collected_++);
    return CachedEncoder::collect(std::move(started));
  }
  std::int64_t images() const override { return earlier_images + 5 * started_; }

  static constexpr std::int64_t earlier_images = 1'000'000;  // of the round before a rollback
  std::string steps;

 private:
  const Done done_;
  int started_ = 0, collected_ = 0;
  mutable std::mt19937 random_{7};
};

class ProducerWithSlowEncoder : public testing::TestWithParam<SlowEncoder::Done> {};
INSTANTIATE_TEST_SUITE_P(Done, ProducerWithSlowEncoder,
                         testing::Values(SlowEncoder::Done::at_once, SlowEncoder::Done::when_collected,
                                         SlowEncoder::Done::now_and_then));

// Whenever batches are done.
TEST_P(ProducerWithSlowEncoder, SendsParcelsInTheirOrderWithoutWhatIsNotFinite) {
  const FakeSource rows({test::Rows(30), test::Rows(30), test::Rows(30)});
  const std::set<std::string> broken = {"001/7", "001/8", "001/9", "002/0"};
  const EncodedRows source(rows, [&](const std::string& id) { return broken.contains(id); });
  const DataPlan plan{rows.manifest(), plan_stripes(3, {}, rows.manifest())};
  const EpochOrder order(5, plan.stripes);
  StripeStream stream(order, source, {}, {.threads = 2, .block = 4});
  for (std::uint32_t stripe = 0; stripe < 3; ++stripe) stream.add(stripe, {});
  SlowEncoder encoder(GetParam());
  constexpr TurnSize size{.samples_per_step = 2, .steps = 2};
  auto ends = make_in_process_handoff({plan_parcel_bytes(size.samples(), tiny_shape), /*slots=*/2});

  std::map<std::uint32_t, std::vector<std::string>> ids;
  LedgerDelta delta;
  ProducerReport report;
  {
    std::jthread producer([&] {
      run_producer(stream, encoder, *ends.sender, plan, {{0, 1, 2}, {{0, 0}, {1, 0}, {2, 0}}, size});
    });
    TurnOrder parcel_order({0, 1, 2}, size);
    for (int parcels = 0; parcels < 30; ++parcels) {
      const auto parcel = ends.receiver->receive(20);
      ASSERT_TRUE(parcel.has_value());
      const auto content = unpack_parcel(parcel->bytes());
      const auto turn = parcel_order.next();
      EXPECT_EQ(content.stripe, turn.stripe) << "parcel " << parcels;
      EXPECT_EQ(static_cast<int>(content.batch.refs.size()), turn.samples) << "parcel " << parcels;
      for (const auto& ref : content.batch.refs) ids[content.stripe].push_back(ref.id);
      if (!content.ledger_delta.empty()) delta.append(LedgerDelta::from_bytes(content.ledger_delta));
      EXPECT_GE(content.report.send_seconds, report.send_seconds) << "sums only grow";
      report = content.report;
    }
    ends.receiver->finish(20);
  }
  for (const auto& [stripe, got] : ids) {
    PlainStripe expected(order, rows, stripe, 4, {});
    std::vector<std::string> wanted;
    while (wanted.size() < got.size())
      if (const auto id = expected.next().id; !broken.contains(id)) wanted.push_back(id);
    EXPECT_EQ(got, wanted) << "stripe " << stripe;
  }
  Ledger ledger(plan);
  ledger.merge(delta);
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::non_finite)], broken.size());
  EXPECT_GT(report.images, 0);
  EXPECT_LT(report.images, SlowEncoder::earlier_images);
  EXPECT_GT(report.readers.read, 0);
  EXPECT_GT(report.encode_seconds, 0);
  EXPECT_LE(report.encode_seconds + report.encode_wait_seconds, report.seconds);
}

// Else a GPU would wait for the host between two batches.
TEST(Producer, ABatchIsPutTogetherAndStartedWhileTheLastOneIsComputed) {
  const FakeSource rows({test::Rows(30)});
  for (const auto done : {SlowEncoder::Done::when_collected, SlowEncoder::Done::at_once}) {
    const EncodedRows source(rows, [](const std::string&) { return false; });
    const DataPlan plan{rows.manifest(), plan_stripes(1, {}, rows.manifest())};
    const EpochOrder order(5, plan.stripes);
    StripeStream stream(order, source, {}, {.threads = 1, .block = 4});
    stream.add(0, {});
    SlowEncoder encoder(done);
    {
      EncodingThread encoding(stream, encoder, {0}, {5, 1});
      for (int batches = 0; batches < 3;) batches += encoding.next(std::chrono::milliseconds(20)).has_value();
    }
    const bool is_gpu = done == SlowEncoder::Done::when_collected;
    EXPECT_EQ(encoder.steps.rfind(is_gpu ? "start 0, start 1, collect 0, start 2, collect 1, start 3, collect 2, "
                                         : "start 0, collect 0, start 1, collect 1, start 2, collect 2, ",
                                  0),
              0u)
        << encoder.steps;
  }
}

// All of some rows in one stripe, as its producer has them.
struct OneStripe {
  OneStripe(const FakeSource& rows, const SampleSource& source, std::uint32_t block)
      : plan{rows.manifest(), plan_stripes(1, {}, rows.manifest())},
        stream(order, source, {}, {.threads = 1, .block = block}) {
    stream.add(0, {});
  }
  // In parcels of so many samples.
  void produce(ParcelSender& sender, int samples) {
    run_producer(stream, encoder, sender, plan, {{0}, {{0, 0}}, {samples, 1}});
  }

  const DataPlan plan;
  const EpochOrder order{5, plan.stripes};
  StripeStream stream;
  CachedEncoder encoder{nullptr, nullptr, CacheUse::beside, tiny_shape, /*batch_size=*/5};
};

// A broken VAE must not make it search for ever.
TEST(Producer, EndsWhenNothingIsFinite) {
  const FakeSource rows({test::Rows(30)});
  const EncodedRows source(rows, [](const std::string&) { return true; });
  OneStripe stripe(rows, source, /*block=*/4);
  const auto& plan = stripe.plan;
  auto ends = make_in_process_handoff({plan_parcel_bytes(4, tiny_shape), /*slots=*/2});
  try {
    stripe.produce(*ends.sender, 4);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    EXPECT_NE(std::string(error.what()).find("not finite"), std::string::npos) << error.what();
  }
  Ledger ledger(plan);  // the producer has thrown: all that it sent is here
  while (ends.receiver->ready() > 0)
    ledger.merge(LedgerDelta::from_bytes(unpack_parcel(ends.receiver->receive(20)->bytes()).ledger_delta));
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::non_finite)], 30u);
}

// data.max_bad_share judges it, and the log tells of the 1st, 10th, 100th and 1000th of its samples.
TEST(Producer, PassesOverALargeArchiveOfWhichNothingIsFinite) {
  const test::TempFolder folder;
  log::init({.console = false, .file = folder.path("log")});
  const FakeSource rows({test::Rows(30), test::Rows(1500)});
  const EncodedRows source(rows, [](const std::string& id) { return id.starts_with("001/"); });
  OneStripe stripe(rows, source, /*block=*/4);
  const auto& plan = stripe.plan;
  ASSERT_EQ(PlainStripe(stripe.order, rows, 0, 4, {}).next().id.substr(0, 4), "000/")
      << "the good one is to come first";
  auto ends = make_in_process_handoff({plan_parcel_bytes(4, tiny_shape), /*slots=*/2});
  std::jthread producer([&] { stripe.produce(*ends.sender, 4); });
  Ledger ledger(plan);
  for (int parcels = 0; parcels < 10; ++parcels) {
    const auto parcel = ends.receiver->receive(20);
    ASSERT_TRUE(parcel.has_value());
    const auto content = unpack_parcel(parcel->bytes());
    for (const auto& ref : content.batch.refs) EXPECT_EQ(ref.archive, 0u);
    if (!content.ledger_delta.empty()) ledger.merge(LedgerDelta::from_bytes(content.ledger_delta));
  }
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::non_finite)], 1500u);
  ends.receiver->finish(20);
  producer.join();
  log::init({});
  const auto text = read_file(folder.path("log"));
  for (const char* said : {"(1 so far)", "(10 so far)", "(100 so far)", "(1000 so far)"})
    EXPECT_NE(text.find(said), std::string::npos) << said << " in " << text;
  EXPECT_EQ(text.find("(2 so far)"), std::string::npos) << text;
}

// Where much is rejected before a sample comes.
TEST(Producer, SendsInSeveralParcelsWhatOneHasNoRoomFor) {
  constexpr std::size_t bad = 5000, good = 10;
  test::Rows archive(bad + good);
  for (std::size_t row = 0; row < bad; ++row)  // no two in one run: 17 bytes each
    archive[row] = row % 2 == 0 ? RejectReason::missing_caption : RejectReason::missing_image;
  const FakeSource rows(std::vector<test::Rows>{archive});
  const EncodedRows source(rows, [](const std::string&) { return false; });
  OneStripe stripe(rows, source, /*block=*/4);
  const auto& plan = stripe.plan;
  auto ends = make_in_process_handoff({plan_parcel_bytes(1, tiny_shape), /*slots=*/2});
  Ledger ledger(plan);
  {
    std::jthread producer([&] { stripe.produce(*ends.sender, 1); });
    for (std::size_t parcels = 0; parcels < good; ++parcels) {
      const auto parcel = ends.receiver->receive(20);
      ASSERT_TRUE(parcel.has_value());
      const auto content = unpack_parcel(parcel->bytes());
      EXPECT_EQ(content.batch.refs.size(), 1u);
      ledger.merge(LedgerDelta::from_bytes(content.ledger_delta));
    }
    ends.receiver->finish(20);
  }
  EXPECT_EQ(ledger.total().rejected_rows(), bad);
  EXPECT_EQ(ledger.total().accepted, good);
}

TEST(Producer, AFailedReaderEndsItWithItsErrorAndWhatItHasRead) {
  const FakeSource rows({test::Rows(5)}, "");  // images without bytes: nothing is accepted
  OneStripe stripe(rows, rows, /*block=*/2);
  const auto& plan = stripe.plan;
  auto ends = make_in_process_handoff({plan_parcel_bytes(4, tiny_shape), /*slots=*/2});
  EXPECT_THROW(tell_errors_of(*ends.sender, [&] { stripe.produce(*ends.sender, 4); }), Error);
  const auto parcel = ends.receiver->receive(20);
  ASSERT_TRUE(parcel);
  const auto content = unpack_parcel(parcel->bytes());
  EXPECT_TRUE(content.batch.refs.empty());
  Ledger ledger(plan);
  ledger.merge(LedgerDelta::from_bytes(content.ledger_delta));
  EXPECT_EQ(ledger.total().rows(), 5u);
  EXPECT_EQ(ledger.total().accepted, 0u);
  EXPECT_THROW(ends.receiver->receive(20), Error);
}

TEST(StageShares, AreOfEachThreadsTime) {
  ProducerReport spent;
  spent.seconds = 10;
  spent.reader_seconds = 20;
  spent.readers = {.read = 1, .decode = 14, .transform = 4, .tokenize = 1};
  spent.encode_seconds = 2;
  spent.encode_wait_seconds = 8;
  spent.send_seconds = 0.5;
  const auto starved = shares_of(spent);
  EXPECT_DOUBLE_EQ(starved.decode, 0.7);
  EXPECT_DOUBLE_EQ(starved.encode_wait, 0.8);
  EXPECT_EQ(slowest_reading(starved), "decoding");
  EXPECT_EQ(describe(starved).rfind("read 5%, decode 70%", 0), 0u);
  EXPECT_EQ(shares_of({}).encode, 0);
}

TEST(PlanParcelSize, WholeStepsAboutSixtyFourImagesAtMostEightSteps) {
  struct Case {
    int per_step, parcel;
  };
  for (const auto [per_step, parcel] : {Case{1, 8}, Case{2, 16}, Case{8, 64}, Case{9, 63}, Case{24, 48}, Case{33, 33},
                                        Case{64, 64}, Case{65, 65}, Case{256, 256}})
    EXPECT_EQ(plan_parcel_size(per_step).samples(), parcel) << per_step << " samples per stripe and step";
}

// docs/formats.md, "Parcel": the longest ids and as much of the ledger as travels at once fit, and not a byte more is
// reserved.
TEST(PlanParcelBytes, IsTheLargestParcelOfThatManySamples) {
  constexpr std::size_t samples = 3, header = 10 * 4 + 17 * 8, of_sample = 2 * 8 + 6 * 4, id = 1024, ledger = 64 << 10;
  constexpr std::size_t values = 8 * 4 * 4 + 77 * 16;
  ParcelContent content;
  content.batch.moments = torch::zeros({samples, 8, 4, 4}, torch::kHalf);
  content.batch.text = torch::zeros({samples, 77, 16}, torch::kHalf);
  content.batch.refs.resize(samples);
  for (auto& ref : content.batch.refs) ref.id = std::string(id, 'x');
  content.ledger_delta = std::string(ledger, 'x');
  const auto bytes = plan_parcel_bytes(samples, {{8, 4, 4}, {77, 16}});
  EXPECT_EQ(bytes, header + samples * (of_sample + id + 2 * values) + ledger);
  EXPECT_EQ(pack_parcel(content).size(), bytes);

  content.batch.text = torch::zeros({samples, 77}, torch::kInt32);
  EXPECT_EQ(pack_parcel(content).size(), plan_parcel_bytes(samples, {{8, 4, 4}, {77}}));
}

// It may have been begun since the plan was made.
TEST(BeginCache, RefusesTheCacheOfAnotherJob) {
  const test::TempFolder folder;
  EncodingPlan plan;
  plan.shape = {{8, 4, 4}, {token_count}};
  plan.cache = folder.path("cache");
  plan.fingerprint = {{"encode.dtype", "float32"}};
  begin_cache(plan, {});
  EXPECT_NO_THROW(begin_cache(plan, {})) << "the same again";
  plan.fingerprint = {{"encode.dtype", "bfloat16"}};
  const auto error = test::error_of([&] { begin_cache(plan, {}); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("encode.dtype: \"float32\" -> \"bfloat16\""), std::string::npos)
      << error.what();
}

// Three archives to fill an empty cache with.
class CacheFillerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(MILLRACE_CLIP_VOCABULARY)) GTEST_SKIP() << "no vocabulary: run scripts/setup";
    fs::copy(test::data_dir() / "folder/pipeline", folder.path("pipeline"), fs::copy_options::recursive);
    fs::remove_all(folder.path("pipeline/tokenizer"));
    write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, folder.path("pipeline/tokenizer"), "!");
    config.run.dir.value = folder.path("run");
    config.transform.resolution = 16;
    config.encode.batch_size = 4;
    config.data.index = "never";
    for (const char* name : {"a.tar", "b.tar", "c.tar"}) {
      std::vector<TarSample> samples;
      for (int row = 0; row < rows; ++row) samples.push_back(test::sample(std::to_string(row), test::small_jpeg(), ""));
      folder.write_tar(name, samples);
      config.data.train.path.push_back(folder.path(name));
    }
    data = make_shares(config.data.train, config.data, 1);
    plan.shape = {{8, 8, 8}, {token_count}};
    plan.cache = folder.path("cache");
    plan.fingerprint = {{"made_with", "a test"}};
    begin_cache(plan, {});
  }
  PipelineFolder open_pipeline() const { return PipelineFolder::open(folder.path("pipeline")); }

  static constexpr int rows = 5;  // of each archive
  const test::TempFolder folder;
  ProducerConfig config;
  DataPlan data;
  EncodingPlan plan;
};

// What a killed rank loses shall not grow with the archives that are behind it.
TEST_F(CacheFillerTest, PublishesAnArchiveOnceItHasGoneOnToTheNext) {
  const auto pipeline_folder = open_pipeline();
  EncodePipeline pipeline(config, pipeline_folder, data, plan, torch::kCPU, 0);
  CacheFiller filler(pipeline, data, {0}, {.threads = 1, .epochs = 1});
  const auto published = [&] {
    std::error_code none;
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path("cache/rows"), none))
      files += entry.path().extension() == ".json";
    return files;
  };
  while (!filler.done()) filler.work(60);
  EXPECT_EQ(published(), 2) << "all but the last";
  filler.publish();
  EXPECT_EQ(published(), 3) << "each in one file";
  EXPECT_EQ(filler.encoded(), 3 * rows);
}

// They are in the cache for good: whoever finds them there counts them, too.
TEST_F(CacheFillerTest, CountsEncodingsThatAreNotFinite) {
  const auto pipeline_folder = open_pipeline();
  const auto networks = load_encoders(Group(), config, pipeline_folder, plan, torch::kCPU);
  weights_of(*networks.vae).at("quant_conv.bias").fill_(std::numeric_limits<float>::infinity());
  for (const int encoded : {3 * rows, 0}) {
    EncodePipeline pipeline(config, pipeline_folder, data, plan, torch::kCPU, 0, networks);
    CacheFiller filler(pipeline, data, {0}, {.threads = 1, .epochs = 1});
    while (!filler.done()) filler.work(60);
    filler.publish();
    EXPECT_EQ(filler.encoded(), encoded);
    Ledger ledger(data);
    ledger.merge(filler.take_delta());
    EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::non_finite)], 3u * rows);
    EXPECT_EQ(ledger.total().accepted, 0u);
  }
}

// The captions are empty: behind start and end all is padding.
TEST_F(CacheFillerTest, PadsCaptionsAsTheConfigurationSays) {
  config.tokenizer.pad_id = {5};
  const auto pipeline_folder = open_pipeline();
  EncodePipeline pipeline(config, pipeline_folder, data, plan, torch::kCPU, 0);
  auto stream = pipeline.start_stream({.threads = 1, .epochs = 1}, CachedValues::full, {0});
  stream.expect(0);
  const auto sample = stream.next(0).value();
  ASSERT_EQ(sample.tokens.size(), std::size_t{token_count});
  EXPECT_EQ(std::count(sample.tokens.begin(), sample.tokens.end(), 5), token_count - 2);
}

TEST(CacheSize, IsToldBeforeTheFirstRow) {
  const test::TempFolder folder;
  EncodingPlan plan;
  plan.shape = {{8, 32, 32}, {77, 1024}};
  plan.cache = folder.path("not/there");
  Manifest manifest;
  manifest.archives.resize(2);
  for (auto& archive : manifest.archives) archive.rows = 50;
  SourceConfig source;
  auto size = plan_cache_size(plan, source, manifest);
  EXPECT_TRUE(size.free_bytes.has_value()) << "of the folders above";
  size.free_bytes = 20'000'000'000;
  EXPECT_EQ(describe(size),
            "170 KiB a row, 162 GiB a million rows (encode.text_on=trainer: 16.3 KiB a row); 18.6 GiB free, for "
            "115k rows")
      << "archives are counted as far as splits ask for";

  source.limit = 100;
  size = plan_cache_size(plan, source, manifest);
  size.free_bytes = 20'000'000'000;
  EXPECT_EQ(describe(size).rfind("170 KiB a row, 16.6 MiB for 100 rows (", 0), 0u) << describe(size);

  plan.shape = {{8, 32, 32}, {77}};
  EXPECT_EQ(describe(plan_cache_size(plan, source, manifest)).rfind("16.3 KiB a row, 1.6 MiB for 100 rows; ", 0), 0u);
}

// One stripe, which a pipe makes, with a batch for many trainers.
TEST(CheckParcelBytes, NamesTheKeysWhenAMessageCannotHoldIt) {
  const EncodingShape shape{{8, 64, 64}, {77, 1024}};
  EXPECT_NO_THROW(check_parcel_bytes(plan_parcel_bytes(4096, shape), 4096));
  const auto error = test::error_of([&] { check_parcel_bytes(plan_parcel_bytes(8192, shape), 8192); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_STREQ(error.what(),
               "batch.global: the 8192 samples of one stripe in a step are 1.7 GiB; at most 1.0 GiB travel at once");
  EXPECT_NE(error.hint().find("data.stripes"), std::string::npos) << error.hint();
}

}  // namespace
}  // namespace millrace
