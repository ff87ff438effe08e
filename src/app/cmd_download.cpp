// download: lists of URLs become archives of images.
#include <algorithm>

#include "command.h"
#include "launch/run_ranks.h"
#include "launch/session.h"
#include "load_config.h"
#include "millrace/core/text.h"
#include "millrace/download/download.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

struct DownloadRoot : DownloadFile {
  config::Auto<int> threads;

  void describe(config::Section& section) {
    DownloadFile::describe(section);
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

// What train has to be told of such archives. A Parquet file has the rows without an image, too.
const char* options_of(DownloadConfig::Format format) {
  if (format == DownloadConfig::Format::webdataset) return "";
  return " data.train.type=parquet data.train.filters.status=success";
}

void print_footer(const DownloadConfig& config, const DownloadResult& result) {
  const DownloadCounts& counts = result.counts;
  say("{}  {}: {} archives, {} were finished before\n", result.finished ? "done" : "stopped", config.out.value,
      counts.shards, counts.shards_before);
  if (counts.rows() > 0)
    say("  images  {}, {:.0f}/s, {}\n", counts.describe(), counts.successes / std::max(result.seconds, 1e-3),
        format_time(result.seconds));
  if (!result.finished) {
    say("  next    the same command again: finished archives stay\n");
    return;
  }
  // What fails again for a passing reason, as dead names do, may be left alone.
  if (counts.retryable > 0 && !config.retry_failed) {
    say("  next    download.retry_failed=true asks again for the {} rows that failed for a passing reason\n",
        counts.retryable);
  }
  if (counts.successes + counts.shards_before > 0) {
    say("  next    millrace train data.train.path={}{} ...\n", shell_word(config.out.value), options_of(config.format));
    return;
  }
  say("  next    there is nothing to train on: no row gave an image, and status_dict in {}/*_stats.json says why\n",
      config.out.value);
  if (const std::string proxy = find_unused_proxy(); !proxy.empty())
    say("          the proxy of {} is not used, and without one this machine may reach no host\n", proxy);
}

int dry_run(const Group& group, const DownloadConfig& config) {
  on_root(group, [&] {
    const DownloadPlan plan = plan_download(config);
    say("{} lists, {} archives of up to {} rows, {} of them finished in {}\n", plan.lists, plan.shards,
        config.rows_per_file, plan.finished, config.out.value);
    say("dry run: nothing was written, and nobody was asked for an image\n");
  });
  return 0;
}

int run_download_command(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded = load_config<DownloadRoot>(
        world, line, [](const DownloadRoot& file, config::Report& report) { file.download.check(report); });
    if (loaded.printed) return 0;
    const DownloadConfig& config = loaded.root.download;
    const auto session = start_session(world, "cpu", {}, loaded.root.threads);
    if (line.dry_run) return dry_run(world.group(), config);
    const auto result = run_download(config, world.group().duplicate(), config.threads.value_or(session.threads));
    if (session.is_root()) print_footer(config, result);
    return static_cast<int>(result.finished ? Exit::done : Exit::requeue);
  });
}

}  // namespace

Command download_command() {
  return {.name = "download",
          .summary = "lists of image URLs -> archives",
          .usage = "download.urls=LISTS download.out=DIR [download.KEY=VALUE]...",
          .run = run_download_command,
          .schema = schema_of<DownloadRoot>,
          .heeds_signals = true,
          .on_ranks = true};
}

}  // namespace millrace
