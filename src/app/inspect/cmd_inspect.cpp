// inspect: what a file or folder holds, and whether it is sound.
#include <algorithm>
#include <filesystem>

#include "command.h"
#include "inspect/inspect.h"
#include "inspect/report_text.h"
#include "load_config.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/text.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/lists.h"
#include "millrace/io/net/urls.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/models/pipeline_folder.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

using nlohmann::json;
namespace stdfs = std::filesystem;

struct InspectConfig {
  struct Data {
    SourceConfig train;
    void describe(config::Section& section) {
      section.section("train", train, "how training would read archives and Parquet: type, columns, idx_to_prompt");
      section.ignore_rest_of<DataConfig>();
    }
  } data;
  config::Auto<int> threads{};

  void describe(config::Section& section) {
    section.section("data", data, "for archives and Parquet");
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

bool is_archive(const std::string& name) {
  return is_kind(name, ArchiveKind::tar) || is_kind(name, ArchiveKind::parquet);
}

bool holds_archives(const stdfs::path& path) {
  for (const auto& entry : stdfs::directory_iterator(path))
    if (is_archive(entry.path().filename().string())) return true;
  return false;
}

// Pictures beside them are previews.
bool holds_weights(const stdfs::path& path) {
  for (const auto& entry : stdfs::directory_iterator(path))
    if (const auto ending = entry.path().extension(); ending == ".ckpt" || ending == ".safetensors") return true;
  return false;
}

// A folder in which nothing of a model lies may be somebody's data, or a checkpoint whose manifest is gone.
json inspect_model(const stdfs::path& path) {
  try {
    return inspect_pipeline(path);
  } catch (const Error&) {
    if (step_of_name(without_last_slash(path).filename().string())) return inspect_checkpoint(path);
    const bool is_of_a_model =
        stdfs::exists(path / "model_index.json") || stdfs::exists(path / "config.json") || holds_weights(path);
    const auto how = is_of_a_model ? "" : how_to_pack_images(path);
    if (how.empty()) throw;
    throw Error(Exit::usage, fmt::format("{} is a folder of images", path.string()), how);
  }
}

// Also one that somebody has copied without its checkpoints.
bool is_run(const stdfs::path& path) {
  return stdfs::exists(checkpoints_in(path)) ||
         (stdfs::exists(path / run_file::config) && stdfs::exists(path / run_file::archives));
}

json inspect_folder(const stdfs::path& path, const InspectOptions& options) {
  if (is_latent_cache(path)) return inspect_cache(path, options);
  if (options.grid) fail(Exit::usage, "--grid: {} holds no images", path.string());
  if (stdfs::exists(path / run_file::manifest)) return inspect_checkpoint(path);
  if (is_run(path)) return inspect_run(path);
  if (!stdfs::exists(path / "model_index.json") && holds_archives(path))
    throw Error(Exit::usage, fmt::format("{} is a folder of archives", path.string()),
                fmt::format("millrace inspect {}/* inspects them", shell_word(path.string())));
  return inspect_model(path);
}

bool is_of_unknown_kind(const stdfs::path& path) {
  const auto name = path.filename().string();
  return stdfs::is_regular_file(path) && !is_archive(name) && !name.ends_with(".safetensors") && !list_format(name);
}

json inspect(const stdfs::path& path, const InspectOptions& options) {
  if (!stdfs::exists(path)) fail(Exit::io, "{}: no such file or folder", path.string());
  if (stdfs::is_directory(path)) return inspect_folder(path, options);
  const auto name = path.filename().string();
  if (is_kind(name, ArchiveKind::parquet)) return inspect_parquet(path, options);
  if (is_kind(name, ArchiveKind::tar)) return inspect_archive(path, options);
  if (options.grid) fail(Exit::usage, "--grid: {} holds no images", path.string());
  if (name.ends_with(".safetensors")) return inspect_safetensors(path);
  if (list_format(name)) return inspect_list(path);
  throw Error(Exit::usage, fmt::format("{}: not a kind of file this version inspects", path.string()),
              "it inspects tar archives, Parquet, lists, safetensors, latent caches, checkpoints, runs and pipelines");
}

int run_inspect(const CommandLine& line) {
  const auto loaded = load_config<InspectConfig>(line);
  if (loaded.printed) return 0;
  if (line.paths.empty()) throw Error(Exit::usage, "inspect needs a path", "millrace inspect PATH...");
  const InspectOptions options{line.find("pipeline"), line.dry_run ? std::nullopt : line.find("grid"),
                               loaded.root.data.train};
  if (options.grid && line.paths.size() > 1)
    throw Error(Exit::usage, "--grid shows one path, and several are given", "millrace inspect PATH --grid FILE.png");
  if (options.pipeline)
    PipelineFolder::open(*options.pipeline).component("tokenizer");  // not the inspected path's fault
  const bool any_known = !std::ranges::all_of(line.paths, is_of_unknown_kind);
  bool sound = true;
  for (const auto& path : line.paths) {
    if (any_known && is_of_unknown_kind(path)) {  // FOLDER/* names everything in it
      log::warning("{}: passed over, as it is not a kind of file this version inspects", path);
      continue;
    }
    json report;
    try {
      report = inspect(path, options);
    } catch (const Error& error) {
      if (error.exit() != Exit::io || !stdfs::exists(path)) throw;
      report = {{"kind", "unknown"}, {"problems", {error.what()}}};
    }
    sound &= report.value("problems", json::array()).empty();
    print_out(line.has("json") ? dump_any(report) : report_text(path, report));
  }
  return static_cast<int>(sound ? Exit::done : Exit::io);
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "what an archive, list, latent cache, checkpoint, run or pipeline holds",
          .usage = "PATH... [--json] [--pipeline DIR] [--grid FILE.png] [data.train.columns.KEY=NAME]...",
          .options = {{"json", "", "one JSON object a line", OptionSpec::Takes::nothing},
                      {"pipeline", "DIR",
                       "diffusers folder: lengths of captions in its tokens, and its VAE for a cache's grid"},
                      {"grid", "FILE", "PNG of the first 64 images that can be decoded"}},
          .takes_paths = true,
          .run = run_inspect,
          .schema = schema_of<InspectConfig>,
          .prints = true};
}

}  // namespace millrace
