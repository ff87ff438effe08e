#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "error_of.h"
#include "handoff/parcels.h"
#include "millrace/core/stopwatch.h"
#include "millrace/handoff/in_process_handoff.h"

namespace millrace {
namespace {

constexpr std::size_t longest = 5000;

TEST(InProcessHandoff, DeliversEverythingInOrder) {
  auto ends = make_in_process_handoff({longest, 3});
  std::jthread producer([&] {
    for (std::uint32_t n = 0; n < 500; ++n) ends.sender->send(0, make_parcel(0, n, longest));
    ends.sender->finish();
  });
  std::uint32_t n = 0;
  const Stopwatch watch;
  while (const auto parcel = ends.receiver->receive(20)) EXPECT_TRUE(is_parcel(parcel->bytes(), 0, n++, longest));
  EXPECT_LT(watch.seconds(), 20) << "the end was waited out";
  EXPECT_EQ(n, 500u);
}

TEST(InProcessHandoff, HoldsNoMoreThanItsSlots) {
  auto ends = make_in_process_handoff({longest, 2});
  const auto parcel = make_parcel(0, 3, longest);
  EXPECT_TRUE(ends.sender->try_send(0, parcel));
  EXPECT_TRUE(ends.sender->try_send(0, parcel));
  EXPECT_FALSE(ends.sender->try_send(0, parcel));
  auto held = ends.receiver->receive(0);
  EXPECT_FALSE(ends.sender->try_send(0, parcel));  // received, but still in use
  held.reset();
  EXPECT_TRUE(ends.sender->try_send(0, parcel));
  EXPECT_EQ(ends.receiver->ready(), 2);
}

TEST(InProcessHandoff, StopFreesAWaitingProducer) {
  auto ends = make_in_process_handoff({longest, 1});
  std::latch full(1);
  bool second = true;
  std::jthread producer([&] {
    ends.sender->send(0, make_parcel(0, 1, longest));
    full.count_down();
    second = ends.sender->send(0, make_parcel(0, 2, longest));
    ends.sender->finish();
  });
  full.wait();
  ends.receiver->finish();
  producer.join();
  EXPECT_FALSE(second);
  EXPECT_TRUE(ends.sender->all_stopped());
  EXPECT_FALSE(ends.receiver->receive(0));
}

TEST(InProcessHandoff, AProducerThatWaitsCanLeave) {
  auto ends = make_in_process_handoff({longest, 1});
  EXPECT_TRUE(ends.sender->send(0, {}));
  EXPECT_FALSE(ends.sender->send(0, {}, [] { return true; }));
  EXPECT_FALSE(ends.sender->stopped(0));
}

TEST(InProcessHandoff, ErrorOfTheProducerComesAfterItsParcels) {
  auto ends = make_in_process_handoff({longest, 2});
  ends.sender->send(0, make_parcel(0, 4, longest));
  ends.sender->report_signal(15);
  ends.sender->finish(Error(Exit::bad_data, "too many bad samples", "look at the ledger"));
  EXPECT_TRUE(is_parcel(ends.receiver->receive(1).value().bytes(), 0, 4, longest));
  EXPECT_EQ(ends.receiver->signal_number(), 15);
  try {
    ends.receiver->receive(1);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    EXPECT_EQ(error.hint(), "look at the ledger");
  }
  EXPECT_FALSE(ends.receiver->receive(0)) << "once";
}

// A producer that has not even begun, too.
TEST(InProcessHandoff, TrainersAreToldWhatAProducerThrows) {
  auto ends = make_in_process_handoff({longest, 2});
  const auto produce = [] { fail(Exit::io, "/node/cache/CACHE.json: no such file"); };
  EXPECT_STREQ(test::error_of([&] { tell_errors_of(*ends.sender, produce); }).what(),
               "/node/cache/CACHE.json: no such file");
  EXPECT_STREQ(test::error_of([&] { ends.receiver->receive(20); }).what(), "/node/cache/CACHE.json: no such file");
  tell_errors_of(*ends.sender, [] {});
}

TEST(InProcessHandoff, ParcelsOutliveBothEnds) {
  std::optional<Parcel> held;
  {
    auto ends = make_in_process_handoff({longest, 2});
    ends.sender->send(0, make_parcel(0, 5, longest));
    held = ends.receiver->receive(1);
  }
  EXPECT_TRUE(is_parcel(held->bytes(), 0, 5, longest));
}

}  // namespace
}  // namespace millrace
