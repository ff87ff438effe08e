// inspect: what a file or folder holds, and whether it is sound.
#include <filesystem>

#include "command.h"
#include "millrace/core/units.h"
#include "millrace/data/latent_cache.h"
#include "millrace/io/lists.h"
#include "millrace/io/parquet.h"
#include "millrace/io/safetensors.h"
#include "millrace/io/tar.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/train/checkpoint.h"

namespace millrace {
namespace {

using nlohmann::json;
namespace stdfs = std::filesystem;

json inspect_archive(const stdfs::path& path) {
  json report = {{"kind", "archive"},
                 {"rows", 0},
                 {"fields", json::object()},
                 {"bytes", stdfs::file_size(path)},
                 {"problems", json::array()}};
  TarReader reader(path.string());
  while (auto sample = reader.next()) {
    report["rows"] = report["rows"].get<std::int64_t>() + 1;
    for (const auto& [field, bytes] : sample->fields) {
      auto& count = report["fields"][field];
      count = count.is_null() ? 1 : count.get<std::int64_t>() + 1;
    }
  }
  if (reader.error()) report["problems"].push_back(reader.error()->message);
  return report;
}

// Reads all rows: a count of the cells that are not null for every column.
template <class Reader>
void count_rows(Reader& reader, const std::vector<std::string>& columns, json& report) {
  std::vector<std::int64_t> filled(columns.size());
  std::int64_t rows = 0;
  try {
    for (; const auto row = reader.next(); ++rows)
      for (std::size_t i = 0; i < columns.size(); ++i) filled[i] += !std::holds_alternative<std::monostate>((*row)[i]);
  } catch (const Error& error) {
    report["problems"].push_back(error.what());
  }
  report["rows"] = rows;
  for (std::size_t i = 0; i < columns.size(); ++i) report["fields"][columns[i]] = filled[i];
}

json inspect_parquet(const stdfs::path& path) {
  json report = {{"kind", "parquet"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  ParquetReader reader(path);
  std::vector<std::string> columns;
  for (const auto& column : reader.schema()) {
    columns.push_back(column.name);
    report["types"][column.name] = column.type;
  }
  count_rows(reader, columns, report);
  return report;
}

json inspect_list(const stdfs::path& path) {
  json report = {{"kind", "list"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  ListReader reader(path);
  count_rows(reader, reader.schema(), report);
  if (const auto damaged = reader.damaged_rows())
    report["problems"].push_back(
        fmt::format("{} damaged rows: too few or too many fields, or no JSON object", damaged));
  return report;
}

json inspect_checkpoint(const stdfs::path& path) {
  json report = {{"kind", "checkpoint"}, {"valid", false}, {"problems", json::array()}};
  try {
    const auto checkpoint = CheckpointReader::open(path);
    const auto state = checkpoint.state();
    report["step"] = state.step;
    report["samples"] = state.samples;
    report["skipped"] = state.skipped;
    report["tensors"] = checkpoint.manifest().at("tensors").size();
    report["files"] = checkpoint.manifest().at("files");
    report["of"] = checkpoint.manifest().value("kind", "");
    report["ema"] = checkpoint.has("ema");
    report["valid"] = true;
  } catch (const Error& error) {
    report["problems"].push_back(error.what());
  }
  return report;
}

json inspect_run(const stdfs::path& path) {
  json report = {{"kind", "run"},
                 {"step", 0},
                 {"samples", 0},
                 {"done", stdfs::exists(path / "DONE")},
                 {"checkpoints", json::array()},
                 {"problems", json::array()}};
  for (const auto& name : list_checkpoints(path)) {
    auto entry = inspect_checkpoint(name.path);
    entry["path"] = name.path.string();
    if (entry["valid"] && report["step"] == 0) report["step"] = entry["step"], report["samples"] = entry["samples"];
    for (const auto& problem : entry["problems"]) report["problems"].push_back(problem);
    report["checkpoints"].push_back(std::move(entry));
  }
  return report;
}

json inspect_safetensors(const stdfs::path& path) {
  json report = {{"kind", "safetensors"},
                 {"bytes", stdfs::file_size(path)},
                 {"tensors", json::object()},
                 {"problems", json::array()}};
  const SafetensorsFile file(path);
  for (const auto& info : file.tensors())
    report["tensors"][info.name] = {{"dtype", to_string(info.dtype)}, {"shape", info.shape}};
  report["metadata"] = file.metadata();
  return report;
}

json inspect(const stdfs::path& path) {
  if (!stdfs::exists(path)) fail(Exit::io, "{}: no such file or folder", path.string());
  if (stdfs::is_directory(path)) {
    if (is_latent_cache(path)) return inspect_latent_cache(path);
    if (stdfs::exists(path / "MANIFEST.json")) return inspect_checkpoint(path);
    if (stdfs::exists(path / "checkpoints")) return inspect_run(path);
    return inspect_pipeline(path);
  }
  const auto name = path.filename().string();
  if (name.ends_with(".safetensors")) return inspect_safetensors(path);
  if (name.ends_with(".parquet")) return inspect_parquet(path);
  if (list_format(name)) return inspect_list(path);
  if (name.find(".tar") != name.npos) return inspect_archive(path);
  throw Error(Exit::usage, fmt::format("{}: not a kind of file this version inspects", path.string()),
              "tar archives, Parquet, lists, safetensors, latent caches, checkpoints, runs and pipelines are");
}

// Names in archives and words of damaged files need not be UTF-8.
std::string to_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void print(const stdfs::path& path, const json& report) {
  fmt::print("{}\n", path.string());
  for (const auto& [key, value] : report.items()) {
    if (key == "tensors" && value.is_object()) {
      fmt::print("  tensors      {}\n", value.size());
    } else if (value.is_structured() && !value.empty() && key != "problems") {
      fmt::print("  {}\n", key);
      for (const auto& [name, entry] : value.items()) fmt::print("    {:<16} {}\n", name, to_text(entry));
    } else if (key != "problems") {
      fmt::print("  {:<12} {}\n", key, value.is_string() ? value.get<std::string>() : to_text(value));
    }
  }
  for (const auto& problem : report.value("problems", json::array()))
    fmt::print("  PROBLEM      {}\n", problem.get<std::string>());
}

int run_inspect(const CommandLine& line) {
  if (line.paths.empty()) throw Error(Exit::usage, "inspect needs a path", "millrace inspect PATH...");
  bool sound = true;
  for (const auto& path : line.paths) {
    json report;
    try {
      report = inspect(path);
    } catch (const Error& error) {
      if (error.exit() != Exit::io || !stdfs::exists(path)) throw;
      report = {{"kind", "unknown"}, {"problems", {error.what()}}};
    }
    sound &= report.value("problems", json::array()).empty();
    if (line.has("json")) {
      print_out(to_text(report));
    } else {
      print(path, report);
    }
  }
  return static_cast<int>(sound ? Exit::done : Exit::io);
}

}  // namespace

Command inspect_command() {
  return {"inspect",
          "what an archive, list, latent cache, checkpoint, run or pipeline holds",
          "PATH... [--json]",
          {{"json", "", "one JSON object a line", OptionSpec::Takes::nothing}},
          true,
          run_inspect,
          nullptr};
}

}  // namespace millrace
