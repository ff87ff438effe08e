#include <gtest/gtest.h>

#include <random>

#include "devices.h"
#include "millrace/core/error.h"
#include "millrace/parcels/batch_receiver.h"
#include "parcels/encodings.h"

namespace millrace {
namespace {

using test::make_batch;
using test::ScriptedReceiver;

EncodedBatch take_batch(BatchReceiver& source) {
  auto batch = source.next(/*seconds=*/20);
  if (!batch) throw std::runtime_error("no batch");
  return std::move(*batch);
}

// The local batch of a step: samples [first, first + count) of every stripe.
void expect_local_batch(const EncodedBatch& batch, const std::vector<std::uint32_t>& stripes, int first, int count) {
  ASSERT_EQ(batch.refs.size(), stripes.size() * static_cast<std::size_t>(count));
  std::size_t at = 0;
  for (const auto stripe : stripes) {
    const auto wanted = make_batch(stripe, first, count);
    for (std::int64_t i = 0; i < count; ++i, ++at) {
      EXPECT_EQ(batch.refs[at].id, wanted.refs[i].id);
      EXPECT_EQ(batch.refs[at].hash, wanted.refs[i].hash);
      EXPECT_EQ(batch.refs[at].epoch, wanted.refs[i].epoch);
      EXPECT_EQ(batch.refs[at].after, wanted.refs[i].after);
      EXPECT_TRUE(torch::equal(batch.moments[at], wanted.moments[i])) << wanted.refs[i].id;
      EXPECT_TRUE(torch::equal(batch.text[at], wanted.text[i])) << wanted.refs[i].id;
    }
  }
}

// Parcels of any length, in any order that keeps a stripe's own.
TEST(BatchReceiver, EveryStepHasTheNextSamplesOfEveryStripe) {
  constexpr int per_step = 3, steps = 6;
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const std::map<std::uint32_t, int> producer_of = {{1, 0}, {4, 1}, {5, 0}, {9, 2}};
    std::map<std::uint32_t, int> sent;
    std::vector<std::uint32_t> stripes;
    for (const auto& [stripe, producer] : producer_of) stripes.push_back(stripe), sent[stripe] = 0;
    ScriptedReceiver receiver;
    while (!sent.empty()) {
      auto next = std::next(sent.begin(), static_cast<int>(random() % sent.size()));
      const int count = 1 + static_cast<int>(random() % 7);
      receiver.put(producer_of.at(next->first), next->first, next->second, count);
      if ((next->second += count) >= per_step * steps) sent.erase(next);
    }
    BatchReceiver source(receiver, producer_of, per_step);
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(fmt::format("seed {}, step {}", seed, step));
      expect_local_batch(take_batch(source), stripes, per_step * step, per_step);
    }
  }
}

class BatchReceiverOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(BatchReceiverOnDevice);

// ... in one piece of memory, from which a GPU takes it at once.
TEST_P(BatchReceiverOnDevice, ABatchIsReadyForItsDevice) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{1, 0}, {4, 1}}, 2, /*pinned=*/is_cuda());
  receiver.put(0, 1, 0, 5);
  receiver.put(1, 4, 0, 3);
  receiver.put(1, 4, 3, 1);
  for (int step = 0; step < 2; ++step) {
    const auto batch = take_batch(source);
    for (const auto& tensor : {batch.moments, batch.text}) {
      EXPECT_EQ(tensor.is_pinned(), is_cuda());
      EXPECT_TRUE(tensor.is_contiguous());
      EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes()) << "nothing but the batch";
    }
    expect_local_batch({batch.refs, upload(batch.moments, device()).cpu(), upload(batch.text, device()).cpu()}, {1, 4},
                       2 * step, 2);
  }
}

TEST(BatchReceiver, ParcelsOfAnotherShapeAreAMistakeOfOurs) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{1, 0}}, 2);
  receiver.put(0, 1, 0, 1);
  auto other = test::make_content(1, 1, 1);
  other.batch.text = other.batch.text.slice(2, 0, 8).contiguous();
  receiver.put(0, other);
  EXPECT_THROW(source.next(1), Error);
}

TEST(BatchReceiver, AProducerThatRunsAheadIsHeldBackByItsSlots) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{0, 0}, {1, 1}}, 2);
  for (int parcel = 0; parcel < 6; ++parcel) receiver.put(0, 0, 2 * parcel, 2);
  receiver.put(1, 1, 0, 8);
  expect_local_batch(take_batch(source), {0, 1}, 0, 2);
  EXPECT_EQ(receiver.given(), 7);
  EXPECT_EQ(receiver.held(0), 5) << "producer 0 has given a step's worth; the rest waits in its slots";
  EXPECT_EQ(receiver.held(1), 0) << "a parcel that is unpacked gives its slot back";
  for (int step = 1; step < 4; ++step) {
    expect_local_batch(take_batch(source), {0, 1}, 2 * step, 2);
    EXPECT_EQ(receiver.held(0), 5 - step);
  }
}

// What is held comes first, and it is taken out as soon as its producer lacks anything: the sample that is missing may
// be behind it.
TEST(BatchReceiver, NoParcelIsHeldWhoseProducerLacksSomething) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{0, 0}, {1, 0}, {2, 1}}, 2);
  for (int parcel = 0; parcel < 4; ++parcel) receiver.put(0, 0, 2 * parcel, 2);
  receiver.put(0, 1, 0, 2);
  receiver.put(0, 0, 8, 2);
  receiver.put(0, 1, 2, 2);
  receiver.put(1, 2, 0, 4);
  expect_local_batch(take_batch(source), {0, 1, 2}, 0, 2);
  EXPECT_EQ(receiver.held(0), 2) << "those after the first step's worth of stripe 1";
  expect_local_batch(take_batch(source), {0, 1, 2}, 2, 2);
  EXPECT_EQ(receiver.held(0), 0);
}

TEST(BatchReceiver, SaysWhoseSamplesAreOverdueAndLosesNothingMeanwhile) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{3, 0}, {8, 1}}, 2);
  receiver.put(0, 3, 0, 20);
  receiver.put(1, 8, 0, 3);
  expect_local_batch(take_batch(source), {3, 8}, 0, 2);
  EXPECT_FALSE(source.next(0));  // one sample of stripe 8 is missing
  EXPECT_FALSE(source.overdue_stripe(1000));
  ASSERT_EQ(source.overdue_stripe(0), 8u);
  EXPECT_EQ(source.producer_of(8), 1);
  receiver.put(1, 8, 3, 1);
  expect_local_batch(take_batch(source), {3, 8}, 2, 2);
}

TEST(BatchReceiver, GathersLedgerDeltasAndTheLatestReports) {
  ScriptedReceiver receiver;
  BatchReceiver source(receiver, {{0, 0}, {1, 1}}, 1);
  for (int n = 0; n < 3; ++n) {
    for (const int producer : {0, 1}) {
      const auto stripe = static_cast<std::uint32_t>(producer);
      auto content = test::make_content(stripe, n, 1);
      content.report.images = 10 * producer + n;
      LedgerDelta delta;
      delta.add(stripe, static_cast<std::uint64_t>(n), std::nullopt);
      content.ledger_delta = delta.to_bytes();
      receiver.put(producer, content);
    }
  }
  for (int step = 0; step < 2; ++step) take_batch(source);
  EXPECT_EQ(source.reports().at(0).images, 1);
  EXPECT_EQ(source.reports().at(1).images, 11);
  std::map<std::uint32_t, std::uint32_t> rows;
  for (const auto& run : source.take_ledger_delta().runs()) rows[run.split] += run.rows;
  EXPECT_EQ(rows, (std::map<std::uint32_t, std::uint32_t>{{0, 2}, {1, 2}}));
  EXPECT_TRUE(source.take_ledger_delta().empty());
}

}  // namespace
}  // namespace millrace
