#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/download/fetcher.h"

namespace millrace {

// Section `download`.
struct DownloadConfig {
  enum class Format { webdataset, parquet };
  enum class Resize { none, keep, center_crop, border };
  struct Columns {
    std::string url = "URL";
    std::optional<std::string> caption = "TEXT";
    std::optional<std::string> hash;
    std::vector<std::string> others;  // empty = all but binary ones

    void describe(config::Section& section);
  };

  std::vector<std::string> urls;
  config::Required out;
  Columns columns;
  Format format = Format::webdataset;
  std::uint64_t rows_per_file = 10'000;
  std::optional<std::uint64_t> limit;
  Resize resize = Resize::none;
  int image_size = 256;
  int quality = 95;
  Duration timeout = Duration::seconds(30);
  config::Bytes max_bytes{32 << 20};
  int retries = 2;
  int per_host = 2;
  config::Auto<int> connections;
  config::Auto<int> threads;
  std::string user_agent = "Mozilla/5.0 (compatible; millrace/0.1; makes image data sets, obeys robots.txt)";
  bool retry_failed = false;
  bool opt_out = true;
  std::vector<std::string> allow_networks;

  void describe(config::Section& section);
  // Adds what single keys cannot tell.
  void check(config::Report& report) const;
  FetchOptions fetch_options() const;
};

// A file with this section alone, as it is kept in the folder of archives.
struct DownloadFile {
  DownloadConfig download;

  void describe(config::Section& section);
};

}  // namespace millrace
