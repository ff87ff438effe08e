#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "images.h"
#include "millrace/core/error.h"
#include "millrace/core/stop.h"
#include "millrace/download/download.h"
#include "millrace/io/parquet_writer.h"

namespace millrace::test {
namespace {

using nlohmann::json;

// /NAME = an image of the golden folder, whatever its Content-Type says; some names misbehave.
void serve_images(const std::string& path, Client& client) {
  if (path == "/robots.txt") return client.answer(404, "");
  if (path == "/page") return client.answer(200, "<html>no image</html>", "Content-Type: image/jpeg\r\n");
  if (path == "/gone") return client.answer(404, "");
  if (path == "/busy") return client.answer(503, "");
  client.answer(200, golden_image(path.substr(1)), "Content-Type: text/html\r\n");
}

// Four rows: a JPEG, a page, a PNG, a missing one: archives of three and one.
fs::path write_list(const TempDir& dir, const TestServer& server) {
  return dir.write("list.csv", "url,caption,width2,note\n" + server.url("/oriented.jpg") + ",\"a, \xC3\xA9\",10,\n" +
                                   server.url("/page") + ",two,20,x\n" + server.url("/rgb.png") + ",,30,y\n" +
                                   server.url("/gone") + ",four,40,z\n");
}

std::vector<std::string> files_in(const fs::path& out) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(out)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Download, WritesTheLayoutOfImg2dataset) {
  const TempDir dir;
  TestServer server(serve_images);
  const fs::path out = dir / "out";
  const auto result = run_download(local_config(write_list(dir, server), out), Group(), 2);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.counts.successes, 2);
  EXPECT_EQ(result.counts.rows(), 4);
  EXPECT_EQ(result.counts.shards, 2);
  EXPECT_EQ(files_in(out), (std::vector<std::string>{"00000.parquet", "00000.tar", "00000_stats.json", "00001.parquet",
                                                     "00001.tar", "00001_stats.json", "download.yaml", "lists.json"}));

  const auto members = members_of(out / "00000.tar");
  std::vector<std::string> names;
  for (const auto& [name, bytes] : members) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"000000.jpg", "000000.json", "000000.txt", "000002.json", "000002.png",
                                             "000002.txt"}));
  EXPECT_EQ(members.at("000000.jpg"), golden_image("oriented.jpg"));
  EXPECT_EQ(members.at("000000.txt"), "a, \xC3\xA9");
  EXPECT_EQ(members.at("000002.txt"), "");
  EXPECT_TRUE(members_of(out / "00001.tar").empty());

  const auto metadata = nlohmann::ordered_json::parse(members.at("000000.json"));
  std::vector<std::string> keys;
  for (const auto& [key, value] : metadata.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"width2", "note", "caption", "url", "key", "status", "error_message",
                                            "width", "height", "original_width", "original_height", "exif", "sha256"}));
  EXPECT_EQ(metadata["width2"], 10);
  EXPECT_EQ(metadata["key"], "000000");
  EXPECT_EQ(metadata["status"], "success");
  EXPECT_TRUE(metadata["error_message"].is_null());
  EXPECT_NE(members.at("000000.json").find("\\u00e9"), std::string::npos);

  EXPECT_EQ(column_of(out / "00000.parquet", "status"),
            (std::vector<Cell>{std::string("success"), std::string("failed_to_resize"), std::string("success")}));
  EXPECT_EQ(column_of(out / "00000.parquet", "key"),
            (std::vector<Cell>{std::string("000000"), std::string("000001"), std::string("000002")}));
  EXPECT_EQ(column_of(out / "00000.parquet", "width2"),
            (std::vector<Cell>{std::int64_t{10}, std::int64_t{20}, std::int64_t{30}}));
  EXPECT_EQ(column_of(out / "00001.parquet", "error_message"), (std::vector<Cell>{std::string("http status: 404")}));
  EXPECT_EQ(column_of(out / "00001.parquet", "width"), (std::vector<Cell>{std::monostate()}));

  const json stats = json::parse(read_file(out / "00000_stats.json"));
  EXPECT_EQ(stats["count"], 3);
  EXPECT_EQ(stats["successes"], 2);
  EXPECT_EQ(stats["failed_to_download"], 0);
  EXPECT_EQ(stats["failed_to_resize"], 1);
  EXPECT_EQ(stats["status_dict"], (json{{"success", 2}, {"not an image: an HTML page", 1}}));
  for (const char* key : {"duration", "start_time", "end_time"}) EXPECT_TRUE(stats[key].is_number()) << key;
}

TEST(Download, ParquetHoldsTheImagesToo) {
  const TempDir dir;
  TestServer server(serve_images);
  DownloadConfig config = local_config(write_list(dir, server), dir / "out");
  config.format = DownloadConfig::Format::parquet;
  run_download(config, Group(), 1);
  EXPECT_EQ(files_in(dir / "out"), (std::vector<std::string>{"00000.parquet", "00000_stats.json", "00001.parquet",
                                                             "00001_stats.json", "download.yaml", "lists.json"}));
  const fs::path table = dir / "out" / "00000.parquet";
  EXPECT_EQ(column_of(table, "jpg"),
            (std::vector<Cell>{golden_image("oriented.jpg"), std::monostate(), golden_image("rgb.png")}));
  EXPECT_EQ(column_of(table, "caption"),
            (std::vector<Cell>{std::string("a, \xC3\xA9"), std::string("two"), std::string("")}));
}

TEST(Download, TheBytesDependOnTheImagesAlone) {
  const TempDir dir;
  TestServer server([](const std::string& path, Client& client) {
    static std::atomic<int> asked{0};
    client.pause(std::chrono::milliseconds(7 * (++asked % 5)));  // answers in ever another order
    serve_images(path, client);
  });
  DownloadConfig config = local_config(write_list(dir, server), dir / "a");
  run_download(config, Group(), 2);
  config.out.value = (dir / "b").string();
  run_download(config, Group(), 1);
  for (const char* name : {"00000.tar", "00000.parquet", "00001.tar"})
    EXPECT_EQ(read_file(dir / "a" / name), read_file(dir / "b" / name)) << name;
}

TEST(Download, ARerunAsksNothingForFinishedShards) {
  const TempDir dir;
  TestServer server(serve_images);
  const DownloadConfig config = local_config(write_list(dir, server), dir / "out");
  run_download(config, Group(), 1);
  const auto before = server.requests();
  auto result = run_download(config, Group(), 1);
  EXPECT_EQ(server.requests(), before);
  EXPECT_EQ(result.counts.rows(), 0);
  EXPECT_EQ(result.counts.shards_before, 2);

  fs::remove(dir / "out" / "00001_stats.json");  // as after a crash before the last file of the shard
  result = run_download(config, Group(), 1);
  EXPECT_EQ(result.counts.rows(), 1);
  EXPECT_EQ(server.requests().at("/gone"), before.at("/gone") + 1);
  EXPECT_EQ(server.requests().at("/oriented.jpg"), before.at("/oriented.jpg"));
}

TEST(Download, FailuresThatMayPassAreAskedForAgain) {
  for (const auto format : {DownloadConfig::Format::webdataset, DownloadConfig::Format::parquet}) {
    const TempDir dir;
    std::atomic<bool> busy{true};
    TestServer server([&](const std::string& path, Client& client) {
      if (path == "/busy" && !busy) return client.answer(200, golden_image("gray.jpg"));
      serve_images(path, client);
    });
    const fs::path list =
        dir.write("list.csv", "url,caption\n" + server.url("/oriented.jpg") + ",a\n" + server.url("/busy") + ",b\n" +
                                  server.url("/gone") + ",c\n" + server.url("/rgb.png") + ",d\n");
    DownloadConfig config = local_config(list, dir / "out");
    config.format = format;
    run_download(config, Group(), 1);
    const auto before = server.requests();
    const std::string untouched = read_file(dir / "out" / "00001.parquet");

    busy = false;
    config.retry_failed = true;
    const auto result = run_download(config, Group(), 1);
    EXPECT_EQ(result.counts.rows(), 1);
    EXPECT_EQ(result.counts.successes, 1);
    EXPECT_EQ(server.requests().at("/busy"), before.at("/busy") + 1);
    for (const char* path : {"/oriented.jpg", "/gone", "/rgb.png"})
      EXPECT_EQ(server.requests().at(path), before.at(path)) << path;
    EXPECT_EQ(read_file(dir / "out" / "00001.parquet"), untouched);

    // As if the server had never been busy.
    DownloadConfig fresh = config;
    fresh.out.value = (dir / "fresh").string();
    run_download(fresh, Group(), 1);
    EXPECT_EQ(read_file(dir / "out" / "00000.parquet"), read_file(dir / "fresh" / "00000.parquet"));
    if (format == DownloadConfig::Format::webdataset) {
      EXPECT_EQ(read_file(dir / "out" / "00000.tar"), read_file(dir / "fresh" / "00000.tar"));
    }
    EXPECT_EQ(json::parse(read_file(dir / "out" / "00000_stats.json"))["successes"], 2);
  }
}

TEST(Download, OtherSettingsForTheSameFolderAreRefused) {
  const TempDir dir;
  TestServer server(serve_images);
  DownloadConfig config = local_config(write_list(dir, server), dir / "out");
  run_download(config, Group(), 1);
  config.timeout = Duration::seconds(3);  // may change
  run_download(config, Group(), 1);
  config.rows_per_file = 2;
  try {
    run_download(config, Group(), 1);
    FAIL() << "other archives in the same folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("download.rows_per_file = 3, not 2"), std::string::npos) << error.what();
  }
}

TEST(Download, HashesAndOptOutsAreCounted) {
  const TempDir dir;
  TestServer server([](const std::string& path, Client& client) {
    if (path == "/robots.txt") return client.answer(200, "User-agent: millrace\nDisallow: /private\n");
    client.answer(200, golden_image("gray.jpg"), path == "/noai" ? "X-Robots-Tag: noai\r\n" : "");
  });
  const fs::path list = dir.write("list.tsv", "url\tsha\n" + server.url("/a") + "\t" + std::string(64, '0') + "\n" +
                                                  server.url("/private") + "\t\n" + server.url("/noai") + "\t\n");
  DownloadConfig config = local_config(list, dir / "out");
  config.columns.caption.reset();
  config.columns.hash = "sha";
  run_download(config, Group(), 1);
  const json stats = json::parse(read_file(dir / "out" / "00000_stats.json"));
  EXPECT_EQ(stats["status_dict"],
            (json{{"hash: mismatch", 1}, {"robots.txt: disallowed", 1}, {"opted out: X-Robots-Tag", 1}}));
  EXPECT_EQ(stats["failed_to_download"], 3);
  config.opt_out = false;
  config.out.value = (dir / "all").string();
  EXPECT_EQ(run_download(config, Group(), 1).counts.successes, 2);
}

TEST(Download, ADamagedRowFailsWithItsReason) {
  const TempDir dir;
  TestServer server(serve_images);
  const fs::path list = dir.write("list.jsonl", "{\"url\":\"" + server.url("/rgb.png") + "\",\"p\":NaN}\n[1]\n");
  DownloadConfig config = local_config(list, dir / "out");
  config.columns.caption.reset();
  EXPECT_EQ(run_download(config, Group(), 1).counts.successes, 1);
  const json stats = json::parse(read_file(dir / "out" / "00000_stats.json"));
  EXPECT_EQ(stats["status_dict"],
            (json{{"success", 1}, {"bad URL: " + list.string() + ":2 does not hold a JSON object", 1}}));
}

TEST(Download, AFullOrForbiddenDiskIsAnErrorThatNamesIt) {
  const TempDir dir;
  TestServer server(serve_images);
  const fs::path file = dir.write("file", "");
  try {
    run_download(local_config(write_list(dir, server), file / "out"), Group(), 1);
    FAIL() << "a folder inside a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos);
  }
}

TEST(Download, NumbersAndKeysHaveTheirDigits) {
  const TempDir dir;
  TestServer server(serve_images);
  std::string text = "url\n";
  for (int i = 0; i < 12; ++i) text += server.url("/gray.jpg") + "\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.columns.caption.reset();
  config.rows_per_file = 11;
  run_download(config, Group(), 1);
  EXPECT_TRUE(members_of(dir / "out" / "00000.tar").contains("0000010.jpg"));
  EXPECT_TRUE(members_of(dir / "out" / "00001.tar").contains("0000100.jpg"));
  EXPECT_FALSE(members_of(dir / "out" / "00001.tar").contains("0000100.txt"));
}

// Last: a signal is never taken back.
TEST(DownloadStop, ASignalDropsWhatIsNotWhole) {
  const TempDir dir;
  TestServer server([](const std::string& path, Client& client) {
    if (path != "/slow") return serve_images(path, client);
    stop::request(SIGUSR1);
    client.pause(std::chrono::seconds(40));
  });
  std::string text = "url,caption\n";
  for (const char* path : {"/gray.jpg", "/gray.jpg", "/gray.jpg", "/slow", "/gray.jpg", "/gray.jpg"})
    text += server.url(path) + ",x\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.timeout = Duration::seconds(60);
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_download(config, Group(), 1);
  EXPECT_FALSE(result.finished);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  const auto files = files_in(dir / "out");
  EXPECT_EQ(std::count_if(files.begin(), files.end(), [](const auto& name) { return name.starts_with("00001"); }), 0);
  for (const auto& name : files) EXPECT_EQ(name.find("tmp"), name.npos) << name;
}

}  // namespace
}  // namespace millrace::test
