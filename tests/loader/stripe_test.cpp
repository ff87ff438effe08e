#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "dataset/fake_source.h"
#include "millrace/core/files.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/stripe.h"
#include "test_data.h"

namespace millrace {
namespace {

using test::FakeSource;
using test::PlainStripe;
using test::Rows;

bool same(const SampleRef& a, const SampleRef& b) {
  return a.id == b.id && a.hash == b.hash && a.epoch == b.epoch && a.stripe == b.stripe && a.after == b.after;
}

// A random data set: some archives empty, some rows rejected, sometimes all of an archive.
FakeSource random_source(std::mt19937& random) {
  std::vector<Rows> archives(1 + random() % 12);
  for (auto& archive : archives) {
    const unsigned bad_percent = random() % 5 == 0 ? 100 : random() % 60;
    archive.resize(random() % 5 == 0 ? 0 : random() % 30);
    for (auto& row : archive) {
      constexpr RejectReason reasons[] = {RejectReason::not_an_image, RejectReason::missing_caption,
                                          RejectReason::filtered, RejectReason::bad_json};
      if (random() % 100 < bad_percent) row = reasons[random() % 4];
    }
  }
  archives.front() = {std::nullopt, RejectReason::missing_caption, std::nullopt};
  return FakeSource(std::move(archives));
}

StripePlan random_plan(std::mt19937& random, const FakeSource& source) {
  const int batches[] = {1, 2, 6, 8, 12, 32};
  return plan_stripes(batches[random() % 6], {}, source.manifest());
}

TEST(PlanStripes, ArchivesEnoughGiveTheLargestDivisorOfTheBatch) {
  const FakeSource source(std::vector<Rows>(600, Rows(1)));
  const std::pair<int, int> cases[] = {{1, 1}, {24, 24}, {512, 512}, {1000, 500}, {1021, 1}, {2048, 512}};
  for (const auto& [batch, stripes] : cases) {
    EXPECT_EQ(most_stripes(batch), stripes);
    EXPECT_EQ(plan_stripes(batch, {}, source.manifest()).stripes, static_cast<std::uint32_t>(stripes));
  }
}

TEST(EpochOrder, EveryUnitOnceAnEpochAndAnotherOrderInTheNext) {
  StripePlan plan{6, {}};
  for (std::uint32_t i = 0; i < 100; ++i) plan.splits.push_back({i, 0, 1});
  const EpochOrder order(420, plan);
  std::vector<std::vector<std::uint32_t>> orders;
  for (std::uint32_t epoch : {0u, 1u, 2u, 7u, 8u, 9u, 0u}) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t stripe = 0; stripe < plan.stripes; ++stripe) {
      const auto splits = order.splits_of(stripe, epoch);
      EXPECT_GE(splits.size(), 16u);
      EXPECT_LE(splits.size(), 17u);
      all.insert(all.end(), splits.begin(), splits.end());
    }
    EXPECT_EQ(std::set(all.begin(), all.end()).size(), 100u);
    EXPECT_EQ(all.size(), 100u);
    orders.push_back(all);
  }
  EXPECT_EQ(orders.front(), orders.back());  // also after the cache has dropped it
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(EpochOrder(421, plan).splits_of(0, 0), order.splits_of(0, 0));
}

// A run that is resumed by a later version goes on in its order.
TEST(EpochOrder, SplitsAndBlocksComeInTheDocumentedOrder) {
  using Numbers = std::vector<std::uint32_t>;
  const auto golden = nlohmann::json::parse(read_file(test::data_dir() / "order/expected.json"));
  const auto seed = golden["seed"].get<std::uint64_t>();
  StripePlan plan{3, {}};
  for (std::uint32_t archive = 0; archive < 20; ++archive) plan.splits.push_back({archive, 0, 1});
  const EpochOrder order(seed, plan);
  ASSERT_EQ(golden["epochs"].size(), 2u);
  for (const auto& epoch : golden["epochs"])
    for (std::uint32_t stripe = 0; stripe < 3; ++stripe)
      EXPECT_EQ(order.splits_of(stripe, epoch["epoch"].get<std::uint32_t>()),
                epoch["splits_of"].at(stripe).get<Numbers>());
  ASSERT_EQ(golden["blocks"].size(), 2u);
  for (const auto& block : golden["blocks"]) {
    const auto expected = block["rows"].get<Numbers>();
    const StripeCursor start{block["epoch"].get<std::uint32_t>(), block["split"].get<std::uint32_t>(),
                             block["row"].get<std::uint64_t>(), 0};
    Numbers rows;
    for (const auto& given :
         plan_block(seed, block["stripe"].get<std::uint32_t>(), static_cast<std::uint32_t>(expected.size()), start, {}))
      rows.push_back(given.row);
    EXPECT_EQ(rows, expected) << block;
  }
}

TEST(PlanBlock, CursorsNameTheBlockUntilItIsUsedUp) {
  const StripeCursor start{0, 1, 4, 0}, next{0, 1, 9, 0};
  const auto whole = plan_block(1, 0, 4, start, next);
  ASSERT_EQ(whole.size(), 4u);
  std::set<std::uint32_t> rows;
  for (std::uint32_t i = 0; i < 4; ++i) {
    rows.insert(whole[i].row);
    EXPECT_EQ(whole[i].after, i < 3 ? (StripeCursor{0, 1, 4, i + 1}) : next);
  }
  EXPECT_EQ(rows, (std::set<std::uint32_t>{0, 1, 2, 3}));
  const auto rest = plan_block(1, 0, 4, whole[1].after, next);
  ASSERT_EQ(rest.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rest[i].row, whole[i + 2].row);
    EXPECT_EQ(rest[i].after, whole[i + 2].after);
  }
  EXPECT_TRUE(plan_block(1, 0, 0, start, next).empty());
}

// Every (sample, visit) exactly once over all stripes, whatever is rejected, however splits are cut and blocks are
// sized.
TEST(StripeProperty, EverySampleOncePerVisit) {
  for (unsigned seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const FakeSource source = random_source(random);
    const EpochOrder order(seed, random_plan(random, source));
    const std::uint32_t block = seed % 5 ? 1 + random() % 9 : 128;
    std::map<std::pair<std::string, std::uint32_t>, int> uses;
    constexpr std::uint32_t epochs = 3;
    std::size_t total = 0;
    for (std::uint32_t number = 0; number < order.plan().stripes; ++number) {
      PlainStripe stripe(order, source, number, block, {});
      // The first sample of a later visit shows that the earlier ones are over; visits never go back.
      std::uint32_t visit = 0;
      for (SampleRef ref = stripe.next(); ref.epoch < epochs; ref = stripe.next()) {
        ASSERT_GE(ref.epoch, visit);
        visit = ref.epoch;
        ++uses[{ref.id, ref.epoch}];
        ++total;
      }
    }
    ASSERT_EQ(uses.size(), total) << "seed " << seed;
    ASSERT_EQ(total, epochs * source.accepted()) << "seed " << seed;
  }
}

// From the cursor of any sample on, a new reader gives the same samples with the same cursors: also after a resume from
// a resume, and whoever reads the stripe.
TEST(StripeProperty, ResumesAnywhere) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(1000 + seed);
    const FakeSource source = random_source(random);
    const EpochOrder order(seed, random_plan(random, source));
    const std::uint32_t block = seed % 5 ? 1 + random() % 9 : 128, number = random() % order.plan().stripes;
    PlainStripe whole(order, source, number, block, {});
    std::vector<SampleRef> expected;
    for (int i = 0; i < 60; ++i) expected.push_back(whole.next());

    std::size_t at = 0;
    StripeCursor cursor;
    while (at < expected.size()) {
      PlainStripe resumed(order, source, number, block, cursor);
      const std::size_t until = std::min(expected.size(), at + 1 + random() % 12);
      for (; at < until; ++at) {
        const SampleRef ref = resumed.next();
        ASSERT_TRUE(same(ref, expected[at]))
            << "seed " << seed << " sample " << at << ": " << ref.id << " != " << expected[at].id;
        cursor = ref.after;
      }
    }
  }
}

TEST(StripeProperty, BlocksShuffleWithinTheirBoundsAnewForEachVisitAndSeed) {
  const FakeSource source(std::vector<Rows>{Rows(40)});
  const StripePlan plan = plan_stripes(1, {}, source.manifest());
  const EpochOrder order(3, plan), order_of_another_seed(4, plan);
  PlainStripe stripe(order, source, 0, 10, {}), another(order_of_another_seed, source, 0, 10, {});
  const auto next_visit = [](PlainStripe& from) {
    std::vector<int> rows;
    for (int i = 0; i < 40; ++i) rows.push_back(std::stoi(from.next().id.substr(4)));
    return rows;
  };
  const std::vector<int> first = next_visit(stripe);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(first[i] / 10, static_cast<int>(i) / 10);
  EXPECT_FALSE(std::ranges::is_sorted(first));
  EXPECT_NE(next_visit(stripe), first);
  EXPECT_NE(next_visit(another), first);
}

// A stripe with fewer rows in an epoch than a block shuffles the epoch: every row comes once, and visits do not mix.
TEST(StripeProperty, ABlockEndsWithTheEpoch) {
  const FakeSource source(std::vector<Rows>{Rows(40), Rows(33)});
  const EpochOrder order(3, plan_stripes(8, {}, source.manifest()));
  constexpr std::uint32_t epochs = 3;
  std::vector<std::set<std::string>> ids(epochs);
  std::size_t moved = 0;
  for (std::uint32_t number = 0; number < 8; ++number) {
    PlainStripe stripe(order, source, number, 128, {});
    for (std::uint32_t epoch = 0; epoch < epochs; ++epoch) {
      std::vector<std::string> expected;
      for (const auto place : order.splits_of(number, epoch)) {
        const Split& split = order.plan().splits[place];
        const std::uint64_t rows = split.archive == 0 ? 40 : 33;
        for (std::uint64_t row = split.index; row < rows; row += split.count)
          expected.push_back(source.id(split.archive, row));
      }
      std::vector<std::string> given;
      while (given.size() < expected.size()) {
        const SampleRef ref = stripe.next();
        ASSERT_EQ(ref.epoch, epoch);
        given.push_back(ref.id);
      }
      moved += given != expected;
      std::ranges::sort(given);
      std::ranges::sort(expected);
      EXPECT_EQ(given, expected);
      ids[epoch].insert(given.begin(), given.end());
    }
  }
  EXPECT_EQ(moved, 8 * epochs);
  for (const auto& epoch : ids) EXPECT_EQ(epoch.size(), 73u);
}

}  // namespace
}  // namespace millrace
