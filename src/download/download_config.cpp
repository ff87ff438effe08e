#include "millrace/download/download_config.h"

#include <fmt/format.h>

#include "millrace/io/net/urls.h"

namespace millrace {

void DownloadConfig::Columns::describe(config::Section& s) {
  s.key("url", url, "column of image URLs");
  s.key("caption", caption, "column of captions; null = none are written");
  s.key("hash", hash, "column of hex digests that the bytes must have: md5, sha256 or sha512 by length; null = none");
  s.key("others", others, "further columns for the metadata; empty = all but binary ones");
}

void DownloadConfig::describe(config::Section& s) {
  s.key("urls", urls, "lists: .parquet, .csv, .tsv, .jsonl, .txt (these also .gz); paths, brace patterns, directories")
      .required();
  s.key("out", out, "folder of the archives; a rerun leaves finished ones alone");
  s.section("columns", columns, "names of the lists' columns; letter case does not matter");
  s.key("format", format, {{"webdataset", Format::webdataset}, {"parquet", Format::parquet}},
        "00000.tar with a 00000.parquet of metadata beside it, or 00000.parquet with the images in column jpg");
  s.key("rows_per_file", rows_per_file, "rows of a list that become one archive").at_least(1).at_most(1'000'000);
  s.key("limit", limit, "use only this many rows, the first ones; null = all").at_least(1);
  s.key(
      "resize", resize,
      {{"none", Resize::none},
       {"keep", Resize::keep},
       {"center_crop", Resize::center_crop},
       {"border", Resize::border}},
      "none = the bytes as they came; else JPEG: shorter side to image_size, the middle square of that, or longer side "
      "to image_size and white borders");
  s.key("image_size", image_size, "side in pixels for resize").at_least(8).at_most(16384);
  s.key("quality", quality, "of the JPEGs that resize writes").at_least(1).at_most(100);
  s.key("timeout", timeout, "for one attempt, redirects included; a connection has to stand within 10 s of it");
  s.key("max_bytes", max_bytes, "largest file that is taken").at_least(1024).at_most(1 << 30);
  s.key("retries", retries, "further attempts after a timeout, a lost connection, 408, 429, 5xx or a truncated body")
      .at_least(0)
      .at_most(10);
  s.key("per_host", per_host,
        "transfers from one host at the same time, shared out to the ranks; at least one for each")
      .at_least(1);
  s.key("connections", connections, "transfers of one rank at the same time; auto = 256").at_least(1).at_most(10'000);
  s.key("threads", threads, "of one rank, for decoding and resizing; auto = threads").at_least(1);
  s.key("user_agent", user_agent, "how the program names itself to servers");
  s.key("retry_failed", retry_failed, "ask again for rows of finished archives that failed for a passing reason");
  s.key("opt_out", opt_out, "obey robots.txt, X-Robots-Tag and TDM reservations");
  s.key("allow_networks", allow_networks, "private networks that may be asked, on any port, as in 10.0.0.0/8");
}

void DownloadFile::describe(config::Section& s) {
  s.section("download", download, "from lists of URLs to archives of images");
}

void DownloadConfig::check(config::Report& report) const {
  if (is_url(out.value))
    report.problem("download.out", fmt::format("{} is an address; it must be a folder that all hosts see", out.value));
  if (timeout.unit != Duration::Unit::seconds || timeout.count <= 0)
    report.problem("download.timeout", "must be a time above 0, as in \"30 s\"");
  for (const std::string& network : allow_networks) {
    if (!Network::parse(network)) report.problem("download.allow_networks", "'" + network + "' is no network");
  }
}

FetchOptions DownloadConfig::fetch_options() const {
  FetchOptions options;
  options.user_agent = user_agent;
  options.timeout_seconds = timeout.count;
  options.max_bytes = max_bytes;
  options.retries = retries;
  options.per_host = per_host;
  options.connections = connections.value_or(options.connections);
  options.opt_out = opt_out;
  for (const std::string& network : allow_networks) options.allow_networks.push_back(*Network::parse(network));
  return options;
}

}  // namespace millrace
