#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <latch>
#include <thread>

#include "images.h"
#include "millrace/core/error.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stop.h"
#include "millrace/download/download.h"
#include "spool.h"

namespace millrace::test {
namespace {

using namespace std::chrono_literals;

void serve_gray(const std::string& path, Client& client) {
  if (path == "/robots.txt") return client.answer(404, "");
  client.answer(200, golden_image("gray.jpg"));
}

// A CSV of so many addresses /NAME0, /NAME1...
std::string rows_of(const TestServer& server, const std::string& name, int rows) {
  std::string text = "url,caption\n";
  for (int i = 0; i < rows; ++i) text += server.url("/" + name + std::to_string(i)) + ",x\n";
  return text;
}

// What run_download refuses to do, or cannot; nothing when it does it.
std::optional<Error> error_of(const DownloadConfig& config) {
  try {
    run_download(config, Group(), 1);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

void expect_refused(const DownloadConfig& config, Exit exit, const std::string& part) {
  const auto error = error_of(config);
  ASSERT_TRUE(error) << part;
  EXPECT_EQ(error->exit(), exit) << error->what();
  EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
}

TEST(DownloadResume, WhatWasReadBeforeABrokenListIsFinished) {
  const TempDir dir;
  const fs::path broken = dir / "lists" / "b.csv";
  TestServer server([&](const std::string& path, Client& client) {
    std::error_code error;
    if (path == "/a0") fs::remove(broken, error);  // while transfers have enough to do without it
    serve_gray(path, client);
  });
  fs::create_directory(dir / "lists");
  dir.write("lists/a.csv", rows_of(server, "a", 10));
  dir.write("lists/b.csv", rows_of(server, "b", 2));
  dir.write("lists/c.csv", rows_of(server, "c", 2));
  DownloadConfig config = local_config(dir / "lists", dir / "out");
  config.rows_per_file = 10;
  config.connections.value = 1;
  expect_refused(config, Exit::io, "b.csv");
  EXPECT_EQ(members_of(dir / "out" / "00000.tar").size(), 30u);
  EXPECT_TRUE(fs::exists(dir / "out" / "00000_stats.json"));
  EXPECT_FALSE(server.requests().contains("/c0"));

  dir.write("lists/b.csv", rows_of(server, "b", 2));
  const auto result = run_download(config, Group(), 1);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.counts.shards_before, 1);
  EXPECT_EQ(result.counts.successes, 4);
  EXPECT_EQ(server.requests().at("/a1"), 1);
}

TEST(DownloadResume, AllListsAreOpenedBeforeAnythingIsWritten) {
  const TempDir dir;
  TestServer server(serve_gray);
  fs::create_directory(dir / "lists");
  dir.write("lists/a.csv", rows_of(server, "a", 2));
  dir.write("lists/b.csv", "link,caption\nx,y\n");
  DownloadConfig config = local_config(dir / "lists", dir / "out");
  expect_refused(config, Exit::usage, "b.csv has no column 'url'");
  dir.write("lists/b.parquet", "no table");
  fs::remove(dir / "lists" / "b.csv");
  expect_refused(config, Exit::io, "b.parquet");
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_TRUE(server.requests().empty());
  config.limit = 2;  // which the first list has
  EXPECT_EQ(run_download(config, Group(), 1).counts.successes, 2);
}

TEST(DownloadResume, ListsMayOnlyComeBehindThoseOfBefore) {
  const TempDir dir;
  TestServer server(serve_gray);
  fs::create_directory(dir / "lists");
  const auto write = [&](const std::string& name, int rows) {
    return dir.write("lists/" + name + ".csv", rows_of(server, name, rows));
  };
  write("m", 2);
  const fs::path n = write("n", 2);
  const DownloadConfig config = local_config(dir / "lists", dir / "out");
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 2);

  const fs::path before = write("a", 2);
  expect_refused(config, Exit::usage, "a.csv stands where");
  fs::remove(before);
  fs::remove(n);
  expect_refused(config, Exit::usage, "n.csv is missing");
  write("n", 3);
  expect_refused(config, Exit::usage, "n.csv has ");
  write("n", 2);
  write("z", 2);
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 1);
  fs::remove(dir / "lists" / "z.csv");
  expect_refused(config, Exit::usage, "z.csv is missing");

  fs::remove(dir / "out" / "download.lists");  // as in folders from before it was kept
  EXPECT_TRUE(run_download(config, Group(), 1).finished);
  EXPECT_TRUE(fs::exists(dir / "out" / "download.lists"));
  dir.write("out/download.lists", "{}");
  expect_refused(config, Exit::io, "download.lists");
}

// As the message says.
TEST(DownloadResume, ListsThatWereMovedGetTheirNewPathsIntoTheFolder) {
  const TempDir dir;
  TestServer server(serve_gray);
  DownloadConfig config = local_config(dir.write("old.csv", rows_of(server, "a", 2)), dir / "out");
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 1);
  fs::rename(dir / "old.csv", dir / "new.csv");
  config.urls = {(dir / "new.csv").string()};
  expect_refused(config, Exit::usage, "new.csv stands where");
  EXPECT_NE(error_of(config)->hint().find("write their new paths into download.lists"), std::string::npos);
  std::string lists = read_file(dir / "out" / "download.lists");
  lists.replace(lists.find("old.csv"), 7, "new.csv");
  dir.write("out/download.lists", lists);
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards_before, 1);
}

TEST(DownloadResume, NewListsMayBeNamedBehindThoseOfBefore) {
  const TempDir dir;
  TestServer server(serve_gray);
  const std::string a = dir.write("a.csv", rows_of(server, "a", 2)).string();
  const std::string b = dir.write("b.csv", rows_of(server, "b", 2)).string();
  DownloadConfig config = local_config(a, dir / "out");
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 1);
  config.urls = {a, b};
  const auto result = run_download(config, Group(), 1);
  EXPECT_EQ(result.counts.shards, 1);
  EXPECT_EQ(result.counts.shards_before, 1);
  config.urls = {b, a};
  expect_refused(config, Exit::usage, "b.csv stands where");
  config.urls = {a};
  expect_refused(config, Exit::usage, "b.csv is missing");
  fs::remove(dir / "out" / "download.lists");  // as in folders from before it was kept
  expect_refused(config, Exit::usage, "holds archives made with download.urls");
}

TEST(DownloadResume, TypesOfColumnsStayAsTheFirstStartFoundThem) {
  const TempDir dir;
  TestServer server(serve_gray);
  const std::string url = server.url("/a");
  const fs::path list = dir.write("list.csv", "url,caption,n\n" + url + ",x,1\n" + url + ",x,\n" + url + ",x,3\n");
  DownloadConfig config = local_config(list, dir / "out");
  config.rows_per_file = 1;
  EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 3);
  std::string lists = read_file(dir / "out" / "download.lists");
  const std::size_t place = lists.find("\"int64\"");
  ASSERT_NE(place, std::string::npos) << lists;
  lists.replace(place, 7, "\"text\"");  // as if they had been found otherwise
  dir.write("out/download.lists", lists);
  const auto make_last_anew = [&] {
    fs::remove(dir / "out" / "00002_stats.json");
    EXPECT_EQ(run_download(config, Group(), 1).counts.shards, 1);
    return type_of_column(dir / "out" / "00002.parquet", "n");
  };
  EXPECT_EQ(make_last_anew(), "string");
  fs::remove(dir / "out" / "download.lists");  // as in folders from before they were kept
  EXPECT_EQ(make_last_anew(), "int64");
  lists.replace(lists.find("\"text\""), 6, "\"word\"");
  dir.write("out/download.lists", lists);
  expect_refused(config, Exit::io, "'word' is no type of a column");
}

TEST(DownloadResume, AFolderOfAnotherProgramIsLeftAlone) {
  const TempDir dir;
  TestServer server(serve_gray);
  const fs::path list = dir.write("list.csv", rows_of(server, "a", 2));
  fs::create_directory(dir / "out");
  dir.write("out/00000_stats.json", "{}");
  expect_refused(local_config(list, dir / "out"), Exit::usage, "of another program: it has no download.yaml");
  EXPECT_FALSE(fs::exists(dir / "out" / "download.yaml"));
}

TEST(DownloadResume, ArchivesDoNotGoWhereListsLie) {
  const TempDir dir;
  TestServer server(serve_gray);
  const fs::path list = dir.write("list.csv", rows_of(server, "a", 2));
  expect_refused(local_config(list, dir.path()), Exit::usage, "download.out: the list " + list.string());
  fs::create_directory(dir / "x");
  expect_refused(local_config(dir.path(), dir / "x" / ".."), Exit::usage, "list.csv");
  EXPECT_FALSE(fs::exists(dir / "download.yaml"));
}

TEST(DownloadResume, WhatAKilledRunWasWritingIsRemoved) {
  const TempDir dir;
  TestServer server(serve_gray);
  const DownloadConfig config = local_config(dir.write("list.csv", rows_of(server, "a", 2)), dir / "out");
  const std::string own = process_name();
  const std::string gone = own.substr(0, own.find('-')) + "-4194999";  // beyond pid_max
  const std::string elsewhere = "0123456789abcdef-1";                  // another machine's
  const auto half = [&](const std::string& name) { return dir.write("out/" + name, "half"); };
  fs::create_directory(dir / "out");
  const auto first = {half("download.lists.tmp-" + gone), half("download.yaml.tmp-" + gone)};
  const fs::path foreign = half("page.html.tmp-old");
  fs::last_write_time(foreign, fs::file_time_type::clock::now() - 25h);
  run_download(config, Group(), 1);
  for (const auto& path : first) EXPECT_FALSE(fs::exists(path)) << path;
  const fs::path old = half("00004.tar.tmp-" + elsewhere);
  fs::last_write_time(old, fs::file_time_type::clock::now() - 25h);
  const auto litter = {half("00001.tar.tmp-" + gone), half("00001_stats.json.tmp-" + gone), half("spool.tmp-" + gone),
                       old};
  const auto at_work = {half("00002.tar.tmp-" + own), half("00003.tar.tmp-" + elsewhere)};
  run_download(config, Group(), 1);
  for (const auto& path : litter) EXPECT_FALSE(fs::exists(path)) << path;
  for (const auto& path : at_work) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_TRUE(fs::exists(foreign)) << "of another program that used this folder before";
}

// Its name tells who made it, should a kill come before the name is gone.
TEST(DownloadResume, TheSpoolHasANameThatALaterStartKnows) {
  const TempDir dir;
  const Spool spool(dir.path());
  EXPECT_TRUE(fs::is_empty(dir.path()));
  const std::string known = (fs::canonical(dir.path()) / "spool.tmp-").string() + process_name();
  bool found = false;
  for (const auto& fd : fs::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    found |= fs::read_symlink(fd, closed).string().starts_with(known);
  }
  EXPECT_TRUE(found);
}

// Each at its own place, whichever thread came when.
TEST(DownloadSpool, GivesBackWhatSeveralThreadsAppend) {
  constexpr int threads = 4, pieces = 40000;
  const auto piece = [](int thread, int number) {
    return std::string(static_cast<std::size_t>(number % 20), static_cast<char>('a' + (thread + 7 * number) % 26));
  };
  const TempDir dir;
  Spool spool(dir.path());
  std::vector<std::vector<Spool::Place>> places(threads);
  {
    std::latch ready(threads);
    std::vector<std::jthread> running;
    for (int thread = 0; thread < threads; ++thread)
      running.emplace_back([&, thread] {
        ready.arrive_and_wait();
        for (int i = 0; i < pieces; ++i) places[thread].push_back(spool.append(piece(thread, i)));
      });
  }
  int wrong = 0;
  for (int thread = 0; thread < threads; ++thread)
    for (int i = 0; i < pieces; ++i) wrong += spool.read(places[thread][i]) != piece(thread, i);
  EXPECT_EQ(wrong, 0) << "of " << threads * pieces;
}

TEST(DownloadProgressLine, SaysWhoseShareItIs) {
  DownloadProgress progress;
  progress.add_success();
  DownloadState state;
  state.waiting_rows = 7;
  state.transfers = 3;
  EXPECT_TRUE(progress.describe(state).starts_with("0 archives | 100.0% of 1 rows")) << progress.describe(state);
  EXPECT_NE(progress.describe(state).find("| 7 rows wait, 3 transfers |"), std::string::npos);
  state.ranks = 4;
  state.list = 2;
  state.lists = 128;
  state.pause = "the network";
  EXPECT_TRUE(progress.describe(state).starts_with("rank 0 of 4: 0 archives, list 2 of 128 |"));
  EXPECT_NE(progress.describe(state).find("3 transfers, others for the network |"), std::string::npos);
}

// Last: a signal is never taken back.
TEST(DownloadStop, ListsAreNotReadOnForAHostThatIsShut) {
  const TempDir dir;
  TestServer server([](const std::string&, Client& client) { client.answer(503, ""); });
  DownloadConfig config = local_config(dir.write("short.csv", rows_of(server, "a", 100)), dir / "short");
  config.rows_per_file = 100;
  config.connections.value = 4;
  auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(run_download(config, Group(), 1).finished) << "nothing is left to wait for";
  const std::chrono::steady_clock::duration first = std::chrono::steady_clock::now() - begun;
  EXPECT_LT(first, 100s);

  config.urls = {dir.write("long.csv", rows_of(server, "a", 6000)).string()};
  config.out.value = (dir / "long").string();
  config.retry_failed = true;  // which tells nothing of archives that were never begun
  // From its first archive on it waits for the host; reading on would take no longer than the whole of the short list.
  std::jthread stopping([&] {
    for (int i = 0; i < 10'000 && !fs::exists(dir / "long" / "00000.tar"); ++i) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(std::max<std::chrono::steady_clock::duration>(3s, 2 * first));
    begun = std::chrono::steady_clock::now();
    stop::request(SIGUSR1);
  });
  const auto result = run_download(config, Group(), 1);
  stopping.join();
  EXPECT_FALSE(result.finished);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 60s);
  EXPECT_EQ(result.counts.rows(), 100);
  EXPECT_EQ(result.counts.shards, 1);
}

}  // namespace
}  // namespace millrace::test
