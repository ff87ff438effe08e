#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "images.h"
#include "millrace/core/error.h"
#include "millrace/core/stop.h"
#include "millrace/download/download.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/io/tar_writer.h"
#include "result_watch.h"
#include "shard_files.h"

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

// A list of one image so many times, without captions.
DownloadConfig config_of_rows(const TempDir& dir, const TestServer& server, int rows) {
  std::string text = "url\n";
  for (int i = 0; i < rows; ++i) text += server.url("/gray.jpg") + "\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.columns.caption.reset();
  return config;
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
  EXPECT_EQ(files_in(out),
            (std::vector<std::string>{"00000.parquet", "00000.tar", "00000_stats.json", "00001.parquet", "00001.tar",
                                      "00001_stats.json", "download.lists", "download.yaml"}));

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

// By img2dataset's resizer, ExifRead and sha256sum.
TEST(Download, TheMetadataTellsOfTheImageBeforeAndAfterItsResize) {
  const std::map<std::string, std::int64_t> numbers = {
      {"width", 16}, {"height", 25}, {"original_width", 90}, {"original_height", 140}};
  const std::map<std::string, std::string> texts = {
      {"exif", R"({"Image Orientation": "Rotated 90 CW"})"},
      {"sha256", "5d39af525c95c54f9dec81115571f198ddd2517c20d65232eb43df83ba14ff90"}};
  const TempDir dir;
  TestServer server(serve_images);
  DownloadConfig config = local_config(write_list(dir, server), dir / "out");
  config.resize = DownloadConfig::Resize::keep;
  config.image_size = 16;
  run_download(config, Group(), 1);
  const json metadata = json::parse(members_of(dir / "out" / "00000.tar").at("000000.json"));
  const auto expect_in_both = [&](const std::string& name, const auto& value) {
    EXPECT_EQ(metadata.at(name), value) << name;
    EXPECT_EQ(column_of(dir / "out" / "00000.parquet", name).at(0), Cell(value)) << name;
  };
  for (const auto& [name, number] : numbers) expect_in_both(name, number);
  for (const auto& [name, text] : texts) expect_in_both(name, text);
}

TEST(Download, ParquetHoldsTheImagesToo) {
  const TempDir dir;
  TestServer server(serve_images);
  DownloadConfig config = local_config(write_list(dir, server), dir / "out");
  config.format = DownloadConfig::Format::parquet;
  run_download(config, Group(), 1);
  EXPECT_EQ(files_in(dir / "out"), (std::vector<std::string>{"00000.parquet", "00000_stats.json", "00001.parquet",
                                                             "00001_stats.json", "download.lists", "download.yaml"}));
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

TEST(Download, AsksAsItsSettingsSay) {
  const TempDir dir;
  TestServer server(serve_images);
  const fs::path list = dir.write("list.csv", "url,caption\n" + server.url("/gray.jpg") + ",a\n" +
                                                  server.url("/rgb.png") + ",b\n" + server.url("/busy") + ",c\n");
  DownloadConfig config = local_config(list, dir / "out");
  config.user_agent = "me/1";
  config.max_bytes.value = golden_image("gray.jpg").size();
  config.retries = 1;
  run_download(config, Group(), 1);
  EXPECT_NE(server.last_request().find("User-Agent: me/1"), std::string::npos) << server.last_request();
  EXPECT_EQ(server.requests().at("/busy"), 2);
  const json stats = json::parse(read_file(dir / "out" / "00000_stats.json"));
  EXPECT_EQ(stats["status_dict"], (json{{"success", 1}, {"too large", 1}, {"http status: 503", 1}}));
}

TEST(Download, AsksOneHostForAsManyThingsAtOnceAsItsSettingsSay) {
  const TempDir dir;
  TestServer server([](const std::string& path, Client& client) {
    client.pause(std::chrono::milliseconds(20));
    serve_images(path, client);
  });
  DownloadConfig config = config_of_rows(dir, server, 12);
  config.per_host = 3;
  run_download(config, Group(), 1);
  EXPECT_EQ(server.max_at_once(), 3);
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
  using Format = DownloadConfig::Format;
  using Resize = DownloadConfig::Resize;
  for (const auto& [format, resize] :
       {std::pair(Format::webdataset, Resize::none), std::pair(Format::webdataset, Resize::keep),
        std::pair(Format::parquet, Resize::none), std::pair(Format::parquet, Resize::keep)}) {
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
    config.resize = resize;
    config.image_size = 16;
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
    if (format == Format::webdataset) {
      EXPECT_EQ(read_file(dir / "out" / "00000.tar"), read_file(dir / "fresh" / "00000.tar"));
    }
    EXPECT_EQ(json::parse(read_file(dir / "out" / "00000_stats.json"))["successes"], 2);
  }
}

// The archive is neither read nor written; what the table tells of the failures may be new.
TEST(Download, ARetryThatWinsNothingLeavesTheImagesAlone) {
  for (const auto format : {DownloadConfig::Format::webdataset, DownloadConfig::Format::parquet}) {
    const TempDir dir;
    std::atomic<bool> busy{true};
    TestServer server([&](const std::string& path, Client& client) {
      if (path == "/busy" && !busy) return client.answer(404, "");
      serve_images(path, client);
    });
    DownloadConfig config = local_config(
        dir.write("list.csv", "url,caption\n" + server.url("/rgb.png") + ",a\n" + server.url("/busy") + ",b\n"),
        dir / "out");
    config.format = format;
    run_download(config, Group(), 1);
    busy = false;
    config.retry_failed = true;
    const bool is_tar = format == DownloadConfig::Format::webdataset;
    const fs::path images = dir / "out" / (is_tar ? "00000.tar" : "00000.parquet");
    fs::last_write_time(images, fs::file_time_type::clock::now() - std::chrono::hours(1));
    const auto time = fs::last_write_time(images);
    const std::string bytes = read_file(images);
    const auto result = run_download(config, Group(), 1);
    EXPECT_EQ(result.counts.rows(), 1);
    EXPECT_EQ(result.counts.shards, is_tar ? 1 : 0) << "written";
    EXPECT_EQ(fs::last_write_time(images), time);
    EXPECT_EQ(read_file(images), bytes);
    EXPECT_EQ(column_of(dir / "out" / "00000.parquet", "error_message").at(1),
              Cell(std::string(is_tar ? "http status: 404" : "http status: 503")));
    EXPECT_EQ(json::parse(read_file(dir / "out" / "00000_stats.json"))["successes"], 1);
  }
}

// Archives of two rows: /busy, which came to nothing and now would, and an image.
struct BusyArchives {
  explicit BusyArchives(int archives) {
    std::string text = "url,caption\n";
    for (int i = 0; i < archives; ++i) text += server.url("/busy") + ",a\n" + server.url("/rgb.png") + ",b\n";
    config = local_config(dir.write("list.csv", text), dir / "out");
    config.rows_per_file = 2;
    run_download(config, Group(), 1);
    busy = false;
    config.retry_failed = true;
  }
  fs::path file(const std::string& name) const { return dir / "out" / name; }

  const TempDir dir;
  std::atomic<bool> busy{true};
  TestServer server{[this](const std::string& path, Client& client) {
    if (path == "/busy" && !busy) return client.answer(200, golden_image("gray.jpg"));
    serve_images(path, client);
  }};
  DownloadConfig config;
};

TEST(Download, ARetryGoesOnBehindADamagedArchive) {
  const struct {
    std::function<void(const BusyArchives&)> damage;
    const char* message;
  } cases[] = {{[](const auto& archives) { TarWriter(archives.file("00000.tar")).commit(); },
                "00000.tar lacks the image of row 1"},
               {[](const auto& archives) { fs::remove(archives.file("00000.tar")); }, "00000.tar"},
               {[](const auto& archives) { fs::resize_file(archives.file("00000.parquet"), 10); }, "00000.parquet"}};
  for (const auto& c : cases) {
    const BusyArchives archives(2);
    c.damage(archives);
    const std::string table = read_file(archives.file("00000.parquet"));
    try {
      run_download(archives.config, Group(), 1);
      FAIL() << c.message;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find(c.message), std::string::npos) << error.what();
      EXPECT_NE(error.hint().find("delete it with its _stats.json"), std::string::npos) << error.hint();
    }
    EXPECT_EQ(read_file(archives.file("00000.parquet")), table);
    EXPECT_EQ(members_of(archives.file("00001.tar")).size(), 6u);
  }
}

// Killed before it wrote the files that are put back here.
TEST(Download, ARetryCompletesOneThatWasKilled) {
  using Format = DownloadConfig::Format;
  const struct {
    Format format;
    std::vector<std::string> unwritten;
  } kills[] = {{Format::webdataset, {"00000_stats.json"}},
               {Format::webdataset, {"00000.parquet", "00000_stats.json"}},
               {Format::parquet, {"00000_stats.json"}}};
  for (const auto& [format, unwritten] : kills) {
    for (const std::string other : {"/gone", "/never"}) {  // the last is asked for again, and fails again
      const TempDir dir;
      std::atomic<bool> busy{true};
      TestServer server([&](const std::string& path, Client& client) {
        if (path == "/never") return client.answer(503, "");
        if (path == "/busy" && !busy) return client.answer(200, golden_image("oriented.jpg"));
        serve_images(path, client);
      });
      DownloadConfig config =
          local_config(dir.write("list.csv", "url,caption\n" + server.url("/busy") + ",a\n" + server.url(other) +
                                                 ",b\n" + server.url("/rgb.png") + ",c\n"),
                       dir / "out");
      config.format = format;
      config.resize = DownloadConfig::Resize::keep;  // so that there is an orientation to tell of
      config.image_size = 16;
      const auto file = [&](const std::string& name) { return dir / "out" / name; };
      run_download(config, Group(), 1);
      std::map<std::string, std::string> before, after;
      for (const std::string& name : unwritten) before[name] = read_file(file(name));

      busy = false;
      config.retry_failed = true;
      run_download(config, Group(), 1);
      for (const char* name : {"00000.tar", "00000.parquet"})
        if (fs::exists(file(name))) after[name] = read_file(file(name));
      for (const auto& [name, content] : before) {
        dir.write("out/" + name, content);
        fs::last_write_time(file(name), fs::file_time_type::clock::now() - std::chrono::hours(1));
      }
      busy = true;
      run_download(config, Group(), 1);
      for (const auto& [name, content] : after)
        EXPECT_EQ(read_file(file(name)), content) << name << " beside " << other;
      EXPECT_EQ(json::parse(read_file(file("00000_stats.json")))["successes"], 2) << other;
      EXPECT_EQ(server.requests().at("/busy"), 2) << other;
    }
  }
}

TEST(Download, ARetryKeepsImagesOfAnySize) {
  const BusyArchives archives(1);
  constexpr std::size_t bytes = 257 << 20;  // a default limit for samples in training is 256 MiB
  {
    TarWriter writer(archives.file("00000.tar"));
    TarSample sample;
    sample.key = "000001";
    sample.fields.emplace_back("png", std::string(bytes, 'x'));
    writer.write(sample);
    writer.commit();
  }
  EXPECT_EQ(run_download(archives.config, Group(), 1).counts.successes, 1);
  EXPECT_GT(fs::file_size(archives.file("00000.tar")), bytes);
}

// ------------------------------------------------------------------------------------------------------------ waiting

// It asks for pauses.
TEST(Download, RowsBehindThoseOfASlowHostAreReadOn) {
  const TempDir dir;
  std::atomic<int> seconds{60};
  TestServer slow([&](const std::string&, Client& client) {
    client.answer(429, "", "Retry-After: " + std::to_string(seconds) + "\r\n");
  });
  TestServer quick(serve_images, "127.0.0.2");
  std::string text = "url\n";
  for (int i = 0; i < 80; ++i) text += (i < 40 && i % 4 == 0 ? slow.url("/x") : quick.url("/gray.jpg")) + "\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.columns.caption.reset();
  config.rows_per_file = 40;
  config.connections.value = 1;
  config.timeout = Duration::seconds(1);
  config.opt_out = false;
  config.allow_networks = {"127.0.0.0/8"};
  const auto count_slow = [&] {
    const json stats = json::parse(read_file(fs::path(config.out.value) / "00000_stats.json"));
    return stats["status_dict"].value("timeout: the host is slow", 0);
  };
  EXPECT_EQ(run_download(config, Group(), 1).counts.rows(), 80);
  EXPECT_GE(count_slow(), 5);

  config.out.value = (dir / "first").string();
  config.limit = 40;
  seconds = 2;
  EXPECT_EQ(run_download(config, Group(), 1).counts.rows(), 40);
  EXPECT_EQ(count_slow(), 0) << "it holds up nobody";
}

TEST(Download, RowsAreNotWrittenOffWhileTheNetworkIsAway) {
  const TempDir dir;
  constexpr int rows = 300;
  // From the 100th row on, until 16 hosts were asked whether it is, and some again: libcurl asks twice where a
  // connection that it has kept is reset.
  std::atomic<bool> is_away{false};
  std::atomic<int> questions{0};
  TestServer server(
      [&](const std::string& path, Client& client) {
        if (path == "/100") is_away = true;
        if (path == "/robots.txt" && ++questions > 22) is_away = false;
        if (is_away) return client.reset();
        client.answer(200, golden_image("gray.jpg"));
      },
      "0.0.0.0");
  std::string text = "url\n";
  // One host has many of the later rows: it is shut by then, and forgiven.
  for (int i = 0; i < rows; ++i) text += url_of_host(server, i > 100 && i % 2 == 1 ? 0 : i) + "\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.columns.caption.reset();
  config.rows_per_file = 20;
  config.connections.value = 4;
  config.opt_out = false;
  config.allow_networks = {"127.0.0.0/8"};
  const auto result = run_download(config, Group(), 1);
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.counts.rows(), rows);
  EXPECT_GT(questions, 16);
  EXPECT_GT(result.counts.successes, rows - 100);
}

// A watch over 4 results, and hosts that may not answer.
struct ResultWatchTest : testing::Test {
  explicit ResultWatchTest(double patience_seconds = 3600)
      : watch(options(), std::chrono::milliseconds(10), patience_seconds) {}
  static FetchOptions options() {
    FetchOptions options;
    options.connections = 1;
    options.allow_networks = {*Network::parse("127.0.0.0/8")};
    return options;
  }
  void note(const std::string& url, std::variant<std::string, Failure> result, bool is_shut = false,
            bool is_retry = false) {
    watch.note(url, {0, std::move(result), is_shut}, is_retry);
  }
  void lose_rows(bool is_retry = false) {
    for (int i = 0; i < 20; ++i) note(url_of_host(server, i), Failure{FailureKind::connection, ""}, false, is_retry);
  }
  void expect_away() {
    Pause pause = watch.look(true);
    for (; pause != Pause::network && std::chrono::steady_clock::now() < end; pause = watch.look(true))
      EXPECT_EQ(pause, Pause::question);
    EXPECT_EQ(pause, Pause::network);
  }
  void expect_away_until_one_answers() {
    expect_away();
    is_away = false;
    Pause pause = Pause::network;
    while (pause == Pause::network && std::chrono::steady_clock::now() < end) pause = watch.look(true);
    EXPECT_EQ(pause, Pause::none);
    EXPECT_EQ(watch.look(true), Pause::none) << "it is the rows' hosts that are dead";
  }

  const std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now() + std::chrono::seconds(100);
  std::atomic<bool> is_away{true};
  TestServer server{[this](const std::string&, Client& client) { is_away ? client.reset() : client.answer(404, ""); },
                    "0.0.0.0"};
  ResultWatch watch;
};

struct ImpatientResultWatchTest : ResultWatchTest {
  ImpatientResultWatchTest() : ResultWatchTest(/*patience_seconds=*/0.1) {}
  void expect_end_of_patience() {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    watch.look(true);  // has waited so long
    EXPECT_EQ(watch.look(true), Pause::none);
  }
};

TEST_F(ResultWatchTest, NobodyIsAskedUntilAKnownHostAnswers) {
  for (int i = 0; i < 8; ++i) note(url_of_host(server, i), std::string("image"));
  EXPECT_EQ(watch.look(true), Pause::none);
  lose_rows(/*is_retry=*/true);
  expect_away_until_one_answers();
}

TEST_F(ResultWatchTest, BeforeTheFirstImageHostsOfFailedRowsAreAsked) {
  lose_rows();
  expect_away_until_one_answers();
}

TEST_F(ResultWatchTest, DeadHostsOfARetryTellNothing) {
  lose_rows(/*is_retry=*/true);
  EXPECT_EQ(watch.look(true), Pause::none);
}

TEST_F(ResultWatchTest, HostsOfOneOwnerTellNothing) {
  for (int i = 0; i < 20; ++i) note("http://c" + std::to_string(i) + ".photos.invalid/", std::string("image"));
  lose_rows();
  EXPECT_EQ(watch.look(true), Pause::none);
}

TEST_F(ResultWatchTest, ListsOfShutHostsWait) {
  const Failure busy{FailureKind::http, "429"};
  for (int i = 0; i < 20; ++i) note(url_of_host(server, 0), busy, /*is_shut=*/true, /*is_retry=*/true);
  EXPECT_EQ(watch.look(true), Pause::none) << "they have failed before";
  for (int i = 0; i < 20; ++i) note(url_of_host(server, 0), busy, /*is_shut=*/true);
  EXPECT_EQ(watch.look(true), Pause::shut_hosts);
  for (int i = 0; i < 20; ++i) note(url_of_host(server, 0), busy);
  EXPECT_EQ(watch.look(true), Pause::none);
}

TEST_F(ImpatientResultWatchTest, ShutHostsMayBeGoneForGood) {
  for (int i = 0; i < 20; ++i) note(url_of_host(server, 0), Failure{FailureKind::http, "429"}, /*is_shut=*/true);
  EXPECT_EQ(watch.look(true), Pause::shut_hosts);
  expect_end_of_patience();
}

TEST_F(ImpatientResultWatchTest, SoMayTheHostsOfAListThatNeverGaveAnImage) {
  lose_rows();
  expect_away();
  expect_end_of_patience();
}

TEST(Download, AProxyThatIsNotUsedIsFound) {
  const char* const names[] = {"http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"};
  std::map<std::string, std::string> before;
  for (const char* name : names) {
    if (const char* const value = std::getenv(name)) before[name] = value;
    ::unsetenv(name);
  }
  EXPECT_EQ(find_unused_proxy(), "");
  for (const char* name : names) {
    ::setenv(name, "http://proxy:3128", 1);
    EXPECT_EQ(find_unused_proxy(), name);
    ::unsetenv(name);
  }
  for (const auto& [name, value] : before) ::setenv(name.c_str(), value.c_str(), 1);
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

// So that data.train.columns.caption=json.caption, or json.tags, finds a list of texts.
TEST(Download, ListsAreNoTextsInTheMetadata) {
  const TempDir dir;
  TestServer server(serve_images);
  const auto row = [&](const std::string& rest) { return R"({"url": ")" + server.url("/rgb.png") + "\", " + rest; };
  const fs::path list = dir.write("list.jsonl", row("\"caption\": [\"a cat\", \"two cats\"], \"tags\": [\"x\"]}\n") +
                                                    row("\"caption\": {\"en\": \"a cat\"}}\n"));
  EXPECT_EQ(run_download(local_config(list, dir / "out"), Group(), 1).counts.successes, 1);
  const auto members = members_of(dir / "out" / "00000.tar");
  EXPECT_EQ(members.at("000000.txt"), "a cat");
  const json metadata = json::parse(members.at("000000.json"));
  EXPECT_EQ(metadata["caption"], json::array({"a cat", "two cats"}));
  EXPECT_EQ(metadata["tags"], json::array({"x"}));
  EXPECT_EQ(column_of(dir / "out" / "00000.parquet", "caption"),
            (std::vector<Cell>{std::string("a cat"), std::monostate()}));
  const json stats = json::parse(read_file(dir / "out" / "00000_stats.json"));
  EXPECT_EQ(stats["status_dict"]["bad URL: 'caption' holds a list or map, and not of texts"], 1);
}

TEST(Download, AColumnOfTextIsInTheTableAsItIsWritten) {
  const TempDir dir;
  TestServer server(serve_images);
  const std::string url = server.url("/rgb.png");
  const fs::path list = dir.write("list.csv", "url,version\n" + url + ",1.10\n" + url + ",beta\n");
  DownloadConfig config = local_config(list, dir / "out");
  config.columns.caption.reset();
  run_download(config, Group(), 1);
  EXPECT_EQ(column_of(dir / "out" / "00000.parquet", "version"),
            (std::vector<Cell>{std::string("1.10"), std::string("beta")}));
  const auto members = members_of(dir / "out" / "00000.tar");
  EXPECT_EQ(json::parse(members.at("000000.json"))["version"], 1.1);
  EXPECT_EQ(json::parse(members.at("000001.json"))["version"], "beta");
}

// The second archive has nothing in `n`.
TEST(Download, AllTablesOfAListHaveTheSameTypes) {
  using Type = ParquetField::Type;
  const TempDir dir;
  TestServer server(serve_images);
  const std::string url = server.url("/rgb.png");
  fs::create_directory(dir / "lists");
  std::string csv = "url,n\n", lines;
  ParquetWriter table(dir / "lists" / "c.parquet", {{"url", Type::text}, {"n", Type::int64}});
  for (const bool has_number : {true, true, false, false}) {
    csv += url + (has_number ? ",7\n" : ",\n");
    lines += R"({"url":")" + url + (has_number ? R"(","n":7})" : R"("})") + "\n";
    table.write({url, has_number ? Cell(std::int64_t{7}) : Cell()});
  }
  table.commit();
  dir.write("lists/a.csv", csv);
  dir.write("lists/b.jsonl", lines);
  DownloadConfig config = local_config(dir / "lists", dir / "out");
  config.columns.caption.reset();
  config.rows_per_file = 2;
  EXPECT_EQ(run_download(config, Group(), 1).counts.successes, 12);
  for (int shard = 0; shard < 6; ++shard) {
    const fs::path archive = dir / "out" / fmt::format("{:05}", shard);
    EXPECT_EQ(type_of_column(archive.string() + ".parquet", "n"), "int64") << shard;
    const auto members = members_of(archive.string() + ".tar");
    const json metadata = json::parse(members.at(key_of(config, static_cast<std::uint64_t>(shard), 0) + ".json"));
    EXPECT_EQ(metadata.at("n"), shard % 2 == 0 ? json(7) : json()) << shard;
  }
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
  DownloadConfig config = config_of_rows(dir, server, 12);
  config.rows_per_file = 11;
  run_download(config, Group(), 1);
  EXPECT_TRUE(members_of(dir / "out" / "00000.tar").contains("0000010.jpg"));
  EXPECT_TRUE(members_of(dir / "out" / "00001.tar").contains("0000100.jpg"));
  EXPECT_FALSE(members_of(dir / "out" / "00001.tar").contains("0000100.txt"));
}

// Those of img2dataset's compute_key.
TEST(Download, KeysHaveTheDigitsOfImg2dataset) {
  const struct {
    std::uint64_t rows_per_file;
    const char* key;
  } cases[] = {{1, "00001"},     {9, "000010"},     {10, "000010"},        {11, "0000100"},
               {100, "0000100"}, {101, "00001000"}, {10'000, "000010000"}, {1'000'000, "00001000000"}};
  for (const auto& c : cases) {
    DownloadConfig config;
    config.rows_per_file = c.rows_per_file;
    EXPECT_EQ(key_of(config, 1, 0), c.key) << c.rows_per_file;
  }
}

// Last: a signal is never taken back.
TEST(DownloadStop, ASignalDropsWhatIsNotWhole) {
  const TempDir dir;
  TestServer server([](const std::string& path, Client& client) {
    if (path != "/slow") return serve_images(path, client);
    stop::request(SIGUSR1);
    client.pause(std::chrono::seconds(400));
  });
  std::string text = "url,caption\n";
  for (const char* path : {"/gray.jpg", "/gray.jpg", "/gray.jpg", "/slow", "/gray.jpg", "/gray.jpg"})
    text += server.url(path) + ",x\n";
  DownloadConfig config = local_config(dir.write("list.csv", text), dir / "out");
  config.timeout = Duration::seconds(600);
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_download(config, Group(), 1);
  EXPECT_FALSE(result.finished);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(200));
  const auto files = files_in(dir / "out");
  EXPECT_EQ(std::count_if(files.begin(), files.end(), [](const auto& name) { return name.starts_with("00001"); }), 0);
  for (const auto& name : files) EXPECT_EQ(name.find("tmp"), name.npos) << name;
}

}  // namespace
}  // namespace millrace::test
