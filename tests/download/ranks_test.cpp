#include <gtest/gtest.h>

#include <atomic>
#include <csignal>

#include "images.h"
#include "millrace/core/stop.h"
#include "millrace/download/download.h"
#include "mpi_world.h"

namespace millrace::test {
namespace {

void serve(const std::string& path, Client& client) {
  if (path == "/robots.txt") return client.answer(404, "");
  client.answer(200, golden_image("gray.jpg"));
}

TEST(DownloadRanks, ShardsAreDealtInTurn) {
  const Group group = test_world().group().duplicate();
  const TempDir dir;
  TestServer server(serve);
  const std::string out = group.broadcast((dir / "out").string());
  const std::string base = group.broadcast(server.url("/"));
  std::string text = "url,caption,n\n";
  for (int i = 0; i < 20; ++i) text += base + std::to_string(i) + (i == 19 ? ",x,7\n" : ",x,\n");
  const auto result = run_download(local_config(dir.write("list.csv", text), out), group, 1);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.counts.successes, 20);
  EXPECT_EQ(result.counts.shards, 7);
  for (int shard = 0; shard < 7; ++shard) {
    EXPECT_EQ(members_of(fs::path(out) / fmt::format("{:05}.tar", shard)).size(), shard == 6 ? 6u : 9u);
    EXPECT_EQ(type_of_column(fs::path(out) / fmt::format("{:05}.parquet", shard), "n"), "int64") << shard;
  }
  EXPECT_EQ(result.counts.rows(), 20);
  if (group.rank() == 0) {
    EXPECT_EQ(server.requests().size(), 21u);  // each once, and robots.txt
  }
  group.barrier();
}

// Last: a signal is never taken back. It comes while the 20th image is asked for, to the last rank.
TEST(DownloadRanks, ASignalToOneEndsAll) {
  const Group group = test_world().group().duplicate();
  const TempDir dir;
  constexpr int rows = 3000, before_signal = 20;
  const int last = group.size() - 1;
  std::atomic<int> asked = 0;
  TestServer server([&](const std::string& path, Client& client) {
    if (path == "/robots.txt") return client.answer(404, "");
    if (++asked == before_signal) stop::request(SIGUSR1);
    client.pause(std::chrono::milliseconds(20));
    client.answer(200, golden_image("gray.jpg"));
  });
  const std::string out = group.broadcast((dir / "out").string());
  const std::string base = group.broadcast(server.url("/"), last);
  std::string text = "url,caption\n";
  for (int i = 0; i < rows; ++i) text += base + std::to_string(i) + ",x\n";
  const auto result = run_download(local_config(dir.write("list.csv", text), out), group, 1);
  EXPECT_FALSE(result.finished);
  EXPECT_LT(result.counts.rows(), rows);
  if (group.rank() == last) {
    EXPECT_GE(asked, before_signal);
    EXPECT_LT(asked, rows);
  }
  group.barrier();
}

}  // namespace
}  // namespace millrace::test
