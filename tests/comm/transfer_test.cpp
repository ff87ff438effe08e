#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>
#include <vector>

#include "core/temp_dir.h"
#include "millrace/comm/backoff.h"
#include "millrace/comm/group.h"
#include "millrace/comm/transfer.h"
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

// The other rank has begun to send and stands still; a rank that leaves because of that must not wait for it. MPICH
// fetches the message without its sender.
TEST(Transfer, AReceiveWhoseSenderStandsStillCanBeLeft) {
  const auto group = test_world().group().duplicate();
  if (group.size() == 1) GTEST_SKIP() << "needs another rank";
  const test::TempDir folder;
  const std::filesystem::path left = group.broadcast((folder / "left").string());
  auto memory = std::make_shared<std::vector<std::byte>>(8 << 20);
  if (group.rank() == 1) {
    auto send = group.sender(0, 5, *memory);
    send.start(memory->size());
    for (const Backoff waiting; !std::filesystem::exists(left) && waiting.seconds() < 30;) std::this_thread::yield();
    complete(send);
  }
  double seconds = 0;
  if (group.rank() == 0) {
    std::optional<Transfer> receive = group.receiver(1, 5, *memory, memory);
    const std::weak_ptr<const void> watched = std::exchange(memory, nullptr);
    receive->start();
    bool is_fetched = false;
    for (Backoff begins; begins.seconds() < 0.2; begins.pause()) is_fetched |= receive->done();
    const Backoff leaving;
    receive.reset();
    seconds = leaving.seconds();
    EXPECT_EQ(watched.expired(), is_fetched) << "the rest of the message may still come";
    std::ofstream(left) << "left";
  }
  group.barrier();
  EXPECT_LT(seconds, 20);
}

}  // namespace
}  // namespace millrace
