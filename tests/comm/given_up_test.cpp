#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

#include "millrace/core/error.h"
#include "mpi_world.h"

// A program of its own: afterwards MPI is of no use to it.
namespace millrace {
namespace {

using namespace std::chrono_literals;

// The error unwinds, and what it frees is others' memory by the time the late rank comes, while another thread of this
// process still looks for parcels.
TEST(GivenUp, WhatArrivesLateIsWrittenNowhere) {
  static std::array<std::int64_t, 2> values = {1, 2};  // MPI_Finalize may still write to them
  static std::byte message{};
  const auto group = test_world().group().duplicate();
  if (group.rank() != 0) {
    std::this_thread::sleep_for(300ms);
    group.all_reduce_sum(values);
    std::this_thread::sleep_for(700ms);
    return;
  }
  auto parcel = test_world().group().receiver(1, 7, std::span(&message, 1));
  parcel.start();
  group.set_time_limit(0.05);
  EXPECT_THROW(group.all_reduce_sum(values), Error);
  values = {7, 7};
  std::string said;
  for (int i = 0; i < 100; ++i) {
    try {
      (void)parcel.done();
    } catch (const Error& error) {
      said = error.what();
    }
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(values, (std::array<std::int64_t, 2>{7, 7}));
  EXPECT_NE(said.find("given up"), std::string::npos) << said;
}

}  // namespace
}  // namespace millrace
