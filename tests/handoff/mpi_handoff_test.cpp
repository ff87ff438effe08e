#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "core/temp_dir.h"
#include "handoff/parcels.h"
#include "millrace/core/stopwatch.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/handoff/parcel_sender.h"
#include "mpi_world.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t longest_parcel = 300000;  // beyond what MPI sends without asking
constexpr double limit_seconds = 30;

// Odd ranks produce, even ranks train.
class MpiHandoff : public testing::Test {
 protected:
  void SetUp() override {
    if (group.size() == 1) GTEST_SKIP() << "needs another rank";
    for (int rank = 0; rank < group.size(); ++rank) (rank % 2 ? producers : trainers).push_back(rank);
  }
  bool produces() const { return group.rank() % 2 == 1; }
  int me() const { return group.rank() / 2; }  // position among the producers, or among the trainers
  std::unique_ptr<ParcelSender> sender(int slots) { return make_mpi_sender(group, trainers, {longest_parcel, slots}); }
  std::unique_ptr<ParcelReceiver> receiver(int slots) {
    return make_mpi_receiver(group, producers, {longest_parcel / 2, slots});
  }

  const Group group = test_world().group().duplicate();
  std::vector<int> producers, trainers;
};

TEST_F(MpiHandoff, DeliversEverythingInOrderToEveryTrainer) {
  constexpr std::uint32_t parcels = 60;
  if (produces()) {
    const auto out = sender(3);
    for (std::uint32_t n = 0; n < parcels; ++n) {
      for (int trainer = 0; trainer < static_cast<int>(trainers.size()); ++trainer) {
        EXPECT_TRUE(out->send(trainer, make_parcel(me(), n, longest_parcel)));
      }
    }
    out->finish(std::nullopt, limit_seconds);
  } else {
    const auto in = receiver(3);
    std::vector<std::uint32_t> seen(producers.size(), 0);
    std::deque<Parcel> held;  // as a trainer that copies to its device later
    while (auto parcel = in->receive(limit_seconds)) {
      auto& n = seen[parcel->producer()];
      EXPECT_TRUE(is_parcel(parcel->bytes(), parcel->producer(), n, longest_parcel));
      ++n;
      held.push_back(std::move(*parcel));
      if (held.size() > 2) held.pop_front();
    }
    EXPECT_EQ(seen, std::vector<std::uint32_t>(producers.size(), parcels));
    in->finish(limit_seconds);
  }
}

TEST_F(MpiHandoff, ASlowTrainerHoldsItsProducersBack) {
  constexpr int slots = 2;
  if (produces()) {
    const auto out = sender(slots);
    const auto parcel = make_parcel(me(), 11, longest_parcel);
    for (int n = 0; n < slots; ++n) EXPECT_TRUE(out->send(0, parcel));
    group.barrier();  // the trainers hold all slots
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(out->try_send(0, parcel));
    int asked = 0;
    EXPECT_FALSE(out->send(0, parcel, [&] { return ++asked > 2; }));
    EXPECT_GT(out->stall_seconds(), 0);
    group.barrier();  // the trainers release them
    EXPECT_TRUE(out->send(0, parcel));
    out->finish(std::nullopt, limit_seconds);
  } else {
    const auto in = receiver(slots);
    std::vector<Parcel> held;
    const std::size_t expected = me() == 0 ? slots * producers.size() : 0;
    while (held.size() < expected) {
      if (auto parcel = in->receive(limit_seconds)) held.push_back(std::move(*parcel));
    }
    group.barrier();
    group.barrier();
    held.clear();
    std::size_t more = 0;
    const Stopwatch watch;
    while (in->receive(limit_seconds)) ++more;
    EXPECT_LT(watch.seconds(), limit_seconds) << "the end was waited out";
    EXPECT_EQ(more, me() == 0 ? producers.size() : 0);
    in->finish(limit_seconds);
  }
}

// The slots that a trainer gives back are granted, and filled, while it calls nothing of MPI.
TEST_F(MpiHandoff, ParcelsMoveWhileTheTrainerComputes) {
  constexpr int slots = 2;
  std::optional<test::TempDir> made;
  if (group.rank() == 0) made.emplace();
  const fs::path folder = group.broadcast(made ? made->path().string() : "", 0);
  const auto flag_of = [&](int producer) { return folder / std::to_string(producer); };
  if (produces()) {
    const auto out = sender(slots);
    const auto parcel = make_parcel(me(), 11, longest_parcel);
    for (int trainer = 0; trainer < static_cast<int>(trainers.size()); ++trainer)
      for (int n = 0; n < 2 * slots; ++n) EXPECT_TRUE(out->send(trainer, parcel));
    std::ofstream(flag_of(me())) << "all sent";
    out->finish(std::nullopt, limit_seconds);
  } else {
    const auto in = receiver(slots);
    std::vector<Parcel> held;
    while (held.size() < slots * producers.size()) held.push_back(in->receive(limit_seconds).value());
    held.clear();
    const Stopwatch computing;
    const auto all_sent = [&] {
      for (int producer = 0; producer < std::ssize(producers); ++producer)
        if (!fs::exists(flag_of(producer))) return false;
      return true;
    };
    while (!all_sent() && computing.seconds() < limit_seconds)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(all_sent());
    for (std::size_t n = 0; n < slots * producers.size(); ++n) EXPECT_TRUE(in->receive(limit_seconds).has_value());
    in->finish(limit_seconds);
  }
  group.barrier();  // the folder goes
}

TEST_F(MpiHandoff, ATrainerThatStopsEarlyEndsItsProducers) {
  if (produces()) {
    const auto out = sender(4);
    std::uint32_t sent = 0;
    while (!out->all_stopped()) {
      for (int trainer = 0; trainer < static_cast<int>(trainers.size()); ++trainer) {
        sent += out->send(trainer, make_parcel(me(), sent, longest_parcel));
      }
    }
    EXPECT_FALSE(out->try_send(0, {}));
    out->finish(std::nullopt, limit_seconds);
    EXPECT_GT(sent, 0u);
  } else {
    const auto in = receiver(4);
    std::optional<Parcel> held;
    for (int n = 0; n < 5; ++n) held = in->receive(limit_seconds);
    const std::vector<std::byte> before(held->bytes().begin(), held->bytes().end());
    in->finish(limit_seconds);
    EXPECT_FALSE(in->receive(0));
    EXPECT_EQ(std::vector<std::byte>(held->bytes().begin(), held->bytes().end()), before);
  }
}

TEST_F(MpiHandoff, ErrorAndSignalOfAProducerReachTheTrainers) {
  const int last = static_cast<int>(producers.size()) - 1;
  if (produces()) {
    const auto out = sender(2);
    if (me() == last) out->report_signal(12);
    for (int trainer = 0; trainer < static_cast<int>(trainers.size()); ++trainer)
      out->send(trainer, make_parcel(me(), 9, longest_parcel));
    std::optional<Error> error;
    if (me() == last) error.emplace(Exit::io, std::string(4000, 'x'), "mount it again");
    out->finish(error, limit_seconds);
  } else {
    const auto in = receiver(2);
    int parcels = 0, errors = 0;
    std::string message;
    for (bool goes_on = true; goes_on;) {
      try {
        goes_on = in->receive(limit_seconds).has_value();
        parcels += goes_on;
      } catch (const Error& error) {
        ++errors;
        message = error.what();
        EXPECT_EQ(error.exit(), Exit::io);
        EXPECT_EQ(error.hint(), "mount it again");
      }
    }
    EXPECT_EQ(parcels, static_cast<int>(producers.size()));
    EXPECT_EQ(errors, 1);
    EXPECT_EQ(in->signal_number(), 12);
    EXPECT_EQ(message.rfind(fmt::format("producer on rank {}: xxx", producers[last]), 0), 0u) << message;
    in->finish(limit_seconds);
  }
}

TEST_F(MpiHandoff, ParcelsOutliveTheReceiver) {
  std::optional<Parcel> held;
  if (produces()) {
    const auto out = sender(2);
    for (int trainer = 0; trainer < static_cast<int>(trainers.size()); ++trainer)
      out->send(trainer, make_parcel(0, 21, longest_parcel));
    out->finish(std::nullopt, limit_seconds);
  } else {
    const auto in = receiver(2);
    held = in->receive(limit_seconds);
    in->finish(limit_seconds);
  }
  group.barrier();
  if (held) {
    EXPECT_TRUE(is_parcel(held->bytes(), 0, 21, longest_parcel));
  }
}

TEST_F(MpiHandoff, DifferentNumbersOfSlotsAreRefusedEverywhere) {
  EXPECT_THROW(produces() ? (void)sender(3) : (void)receiver(4), Error);
}

}  // namespace
}  // namespace millrace
