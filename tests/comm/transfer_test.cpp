#include "millrace/comm/transfer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "millrace/comm/backoff.h"
#include "millrace/comm/group.h"
#include "mpi_world.h"

namespace millrace {
namespace {

void complete(Transfer& transfer) {
  for (Backoff backoff; !transfer.done();) backoff.pause();
}

TEST(Transfer, CarriesMessagesOfDifferentLengthsAroundTheRing) {
  const auto group = test_world().group().duplicate();
  if (group.size() == 1) GTEST_SKIP() << "needs another rank";
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  std::vector<std::byte> out(1 << 20), in(1 << 20);
  auto send = group.sender(next, 7, out);
  auto receive = group.receiver(previous, 7, in);
  for (const std::size_t bytes : {std::size_t{1}, out.size(), std::size_t{0}, std::size_t{5000}}) {
    receive.start();
    std::fill(out.begin(), out.end(), static_cast<std::byte>(group.rank() + bytes));
    send.start(bytes);
    complete(send);
    complete(receive);
    EXPECT_EQ(receive.bytes(), bytes);
    if (bytes > 0) {
      EXPECT_EQ(in[bytes - 1], static_cast<std::byte>(previous + bytes));
    }
  }
}

TEST(Transfer, PendingReceiveCanBeGivenUp) {
  const auto group = test_world().group().duplicate();
  if (group.size() == 1) GTEST_SKIP() << "needs another rank";
  std::array<std::byte, 8> memory{};
  auto receive = group.receiver((group.rank() + 1) % group.size(), 3, memory);
  receive.start();
  EXPECT_FALSE(receive.done());
  receive.cancel();
  EXPECT_TRUE(receive.done());
  auto left_pending = group.receiver((group.rank() + 1) % group.size(), 3, memory);
  left_pending.start();
}

}  // namespace
}  // namespace millrace
