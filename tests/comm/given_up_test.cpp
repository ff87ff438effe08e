#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "core/temp_dir.h"
#include "millrace/comm/backoff.h"
#include "millrace/core/error.h"
#include "mpi_world.h"

// A program of its own: afterwards MPI is of no use to it.
namespace millrace {
namespace {

using namespace std::chrono_literals;
using std::filesystem::exists;
using std::filesystem::path;

void wait_while(const std::function<bool()>& holds) {
  for (const Backoff waiting; holds() && waiting.seconds() < 100;) std::this_thread::sleep_for(1ms);
}

// The error unwinds, and what it frees is others' memory by the time the late rank comes, while another thread of this
// process still looks for parcels.
TEST(GivenUp, WhatArrivesLateIsWrittenNowhere) {
  static std::array<std::int64_t, 2> values = {1, 2};  // MPI_Finalize may still write to them
  static std::byte message{};
  const auto group = test_world().group().duplicate();
  const test::TempDir folder;
  const path gave_up = group.broadcast((folder / "gave up").string()), sent = gave_up.parent_path() / "sent";
  if (group.rank() != 0) {
    wait_while([&] { return !exists(gave_up); });
    std::ofstream(sent) << "in a moment";
    group.all_reduce_sum(values);  // comes back once the other rank, at its end, sees to its messages again
    wait_while([&] { return exists(gave_up); });  // its folder goes with the other rank's test
    return;
  }
  auto parcel = test_world().group().receiver(1, 7, std::span(&message, 1));
  parcel.start();
  group.set_time_limit(0.05);
  EXPECT_THROW(group.all_reduce_sum(values), Error);
  values = {7, 7};
  std::ofstream(gave_up) << "gave up";
  std::string said;
  int looks = 100;  // half a second from when it is sent
  for (const Backoff waiting; looks > 0 && waiting.seconds() < 100; looks -= exists(sent)) {
    try {
      (void)parcel.done();
    } catch (const Error& error) {
      said = error.what();
    }
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(looks, 0);
  EXPECT_EQ(values, (std::array<std::int64_t, 2>{7, 7}));
  EXPECT_NE(said.find("given up"), std::string::npos) << said;
}

}  // namespace
}  // namespace millrace
