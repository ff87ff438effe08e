#include "millrace/data/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/data/latent_cache.h"
#include "millrace/data/latent_table.h"
#include "millrace/io/tar.h"
#include "millrace/io/urls.h"
#include "sample_columns.h"
#include "synthetic_source.h"
#include "table.h"

namespace millrace {

using nlohmann::json;

namespace {

Archive describe_archive(const std::string& path, const std::string& name) {
  Archive archive{.path = path, .name = name, .rows = {}, .limit = {}};
  archive.seekable = is_table(path);
  const std::string file = local_path(path);
  std::error_code error;
  if (file.empty() || !fs::is_regular_file(file, error)) return archive;
  archive.bytes = fs::file_size(file, error);
  if (error) throw Error(Exit::io, fmt::format("{}: {}", file, error.message()));
  archive.seekable |= file.ends_with(".tar");  // a compressed one has to be unpacked to get anywhere in it
  return archive;
}

Manifest list_synthetic(std::int64_t rows) {
  Manifest manifest;
  const std::int64_t archives = (rows + synthetic_archive_rows - 1) / synthetic_archive_rows;
  for (std::int64_t i = 0; i < archives; ++i) {
    Archive archive;
    archive.name = archive.path = fmt::format("synthetic-{:06}", i);
    archive.seekable = true;
    archive.rows = std::min(synthetic_archive_rows, rows - i * synthetic_archive_rows);
    archive.limit = archive.rows;
    manifest.archives.push_back(std::move(archive));
  }
  return manifest;
}

// None where the archive is broken; its reader will say so.
std::uint64_t rows_up_to(std::uint64_t most, const Archive& archive) {
  if (!is_table(archive.path)) return TarReader(archive.path).skip(most);
  try {
    return count_table_rows(archive.path, most);
  } catch (const Error&) {
    return 0;
  }
}

fs::path latent_path(const SourceConfig& source) {
  if (source.path.size() == 1) return source.path.front();
  throw Error(Exit::usage,
              fmt::format("{0}.type=latents reads one cache or Parquet files, {0}.path names several", source.section),
              "millrace preprocess can put the latents of many archives into one cache");
}

// Keeps the first rows of the manifest.
void apply_limit(Manifest& manifest, const SourceConfig& source) {
  const auto limit = static_cast<std::uint64_t>(*source.limit);
  std::uint64_t rows = 0;
  std::size_t used = 0;
  while (used < manifest.archives.size() && rows < limit) {
    Archive& archive = manifest.archives[used++];
    if (local_path(archive.path).empty() && !archive.seekable) {
      throw Error(Exit::usage,
                  fmt::format("{}.limit has to count the rows of {} before it is read", source.section, archive.path),
                  fmt::format("use files, or leave {}.limit at null", source.section));
    }
    archive.rows = rows_up_to(limit - rows, archive);
    rows += *archive.rows;
    if (rows == limit) archive.limit = archive.rows;
  }
  manifest.archives.resize(used);
}

Archives archives_of(SourceConfig::Type type) {
  if (type == SourceConfig::Type::parquet || type == SourceConfig::Type::latents) return Archives::parquet;
  return type == SourceConfig::Type::csv ? Archives::list : Archives::tar;
}

// What the files are goes by their names; another kind than `type` says is most likely a mistake in one of the two.
void check_kind(const std::vector<std::string>& paths, const SourceConfig& source) {
  using Type = SourceConfig::Type;
  const bool class_tables = source.type == Type::class_labels && is_table(paths.front());
  for (const std::string& path : paths) {
    const bool table = is_table(path), parquet = path.ends_with(".parquet");
    if (table && local_path(path).empty() && !(parquet && is_s3(path))) {
      throw Error(Exit::usage, fmt::format("{}.path: {} cannot be read from where it is", source.section, path),
                  "lists have to be files, Parquet files or s3://");
    }
    const bool wanted = archives_of(source.type) == Archives::parquet ? parquet
                        : source.type == Type::csv                    ? table && !parquet
                        : source.type == Type::class_labels           ? table == class_tables
                                                                      : !table;
    if (wanted) continue;
    throw Error(Exit::usage,
                fmt::format("{}.type={} does not go with {}", source.section, to_string(source.type), path),
                "webdataset reads tars, parquet and latents *.parquet, csv *.csv, *.tsv, *.jsonl and these with .gz, "
                "class one kind of them");
  }
}

// Wrong names of columns are better found here than in the middle of a run. Files that are broken are another matter.
void check_columns(const Manifest& manifest, const SourceConfig& source) {
  for (const Archive& archive : manifest.archives) {
    if (!is_table(archive.path)) return;
    try {
      choose_columns(table_columns(archive.path), source, archive.path);
      return;
    } catch (const Error& error) {
      if (error.exit() != Exit::io) throw;
    }
  }
}

}  // namespace

Manifest make_manifest(const SourceConfig& source, bool allow_pipes) {
  constexpr std::int64_t synthetic_rows = 64 * synthetic_archive_rows;
  if (source.type == SourceConfig::Type::synthetic) return list_synthetic(source.limit.value_or(synthetic_rows));
  if (source.path.empty())
    throw Error(Exit::usage, source.section + ".path is not set", source.section + ".path='/data/{00000..00127}.tar'");
  const bool latents = source.type == SourceConfig::Type::latents;
  if (latents && !names_latent_tables(source))
    return make_latent_manifest(latent_path(source), source.limit, source.section);
  const std::vector<std::string> paths = expand_urls(source.path, archives_of(source.type));
  if (paths.empty()) throw Error(Exit::usage, source.section + ".path names no archive");
  if (!allow_pipes && std::any_of(paths.begin(), paths.end(), is_pipe)) {
    throw Error(Exit::usage, source.section + ".path holds a pipe: address, which runs a shell command",
                "set data.allow_pipes=true if that is what you want");
  }
  check_kind(paths, source);
  const std::vector<std::string> names = archive_names(paths, source.section);
  Manifest manifest;
  for (std::size_t i = 0; i < paths.size(); ++i) manifest.archives.push_back(describe_archive(paths[i], names[i]));
  std::sort(manifest.archives.begin(), manifest.archives.end(),
            [](const Archive& a, const Archive& b) { return a.name < b.name; });
  if (!latents) check_columns(manifest, source);
  if (source.limit) apply_limit(manifest, source);
  return manifest;
}

bool needs_rows(int global_batch, const config::Auto<int>& stripes, const Manifest& manifest) {
  const int most = stripes.value_or(std::min(global_batch, max_stripes));
  return static_cast<int>(manifest.archives.size()) < most;
}

void count_rows(Manifest& manifest, const config::Auto<int>& stripes) {
  const auto most = static_cast<std::uint64_t>(std::max(max_stripes, stripes.value_or(0)));
  for (Archive& archive : manifest.archives) {
    if (!archive.seekable || archive.rows) continue;
    archive.rows = rows_up_to(most, archive);
  }
}

namespace {

// Into how many lanes an archive can be cut at most, so that none is empty.
std::uint64_t most_lanes(const Archive& archive) {
  if (!archive.seekable) return 1;
  ensure(archive.rows.has_value(), "lanes are planned before rows are counted");
  return std::max<std::uint64_t>(1, *archive.rows);
}

// The smallest number of lanes per archive (fewer for one with fewer rows) that gives every stripe a unit; 0 when there
// is none.
std::uint64_t lanes_for(std::uint64_t stripes, const Manifest& manifest) {
  if (manifest.archives.size() >= stripes) return 1;
  for (std::uint64_t lanes = 2; lanes <= stripes; ++lanes) {
    std::uint64_t units = 0;
    for (const Archive& archive : manifest.archives) units += std::min(lanes, most_lanes(archive));
    if (units >= stripes) return lanes;
  }
  return 0;
}

StripePlan cut_into_units(std::uint32_t stripes, std::uint64_t lanes, const Manifest& manifest) {
  StripePlan plan{stripes, {}};
  for (std::uint32_t i = 0; i < manifest.archives.size(); ++i) {
    const auto count = lanes == 1 ? 1u : static_cast<std::uint32_t>(std::min(lanes, most_lanes(manifest.archives[i])));
    for (std::uint32_t lane = 0; lane < count; ++lane) plan.units.push_back({i, lane, count});
  }
  return plan;
}

[[noreturn]] void fail_unfed(int stripes, const Manifest& manifest) {
  const bool streams =
      std::any_of(manifest.archives.begin(), manifest.archives.end(), [](const Archive& a) { return !a.seekable; });
  throw Error(Exit::usage,
              fmt::format("data.stripes = {}: {} archives cannot feed so many{}", stripes, manifest.archives.size(),
                          streams ? " (a pipe, an address or a compressed file feeds one stripe)" : " (too few rows)"),
              "set data.stripes=auto, or a smaller divisor of batch.global, or give more archives");
}

}  // namespace

StripePlan plan_stripes(int global_batch, const config::Auto<int>& wanted, const Manifest& manifest) {
  ensure(global_batch >= 1 && !manifest.archives.empty(), "stripes need a batch and archives");
  if (wanted.value) {
    const int stripes = *wanted.value;
    if (stripes < 1 || global_batch % stripes) {
      throw Error(Exit::usage,
                  fmt::format("data.stripes = {} does not divide batch.global = {}", stripes, global_batch),
                  "every global batch takes as many samples from each stripe; auto chooses a divisor");
    }
    const std::uint64_t lanes = lanes_for(stripes, manifest);
    if (lanes == 0) fail_unfed(stripes, manifest);
    return cut_into_units(stripes, lanes, manifest);
  }
  for (int stripes = std::min(global_batch, max_stripes); stripes > 1; --stripes) {
    if (global_batch % stripes) continue;
    if (const std::uint64_t lanes = lanes_for(stripes, manifest)) return cut_into_units(stripes, lanes, manifest);
  }
  return cut_into_units(1, 1, manifest);
}

DataPlan make_data_plan(const SourceConfig& source, const DataConfig& config, int global_batch) {
  DataPlan plan;
  plan.manifest = make_manifest(source, config.allow_pipes);
  if (needs_rows(global_batch, config.stripes, plan.manifest)) count_rows(plan.manifest, config.stripes);
  plan.stripes = plan_stripes(global_batch, config.stripes, plan.manifest);
  return plan;
}

// CBOR, because paths are bytes and not always UTF-8.
std::string to_bytes(const DataPlan& plan) {
  json archives = json::array(), units = json::array();
  const auto number = [](const std::optional<std::uint64_t>& n) { return n ? json(*n) : json(nullptr); };
  for (const Archive& a : plan.manifest.archives) {
    archives.push_back({a.path, a.name, a.bytes, a.seekable, number(a.rows), number(a.limit)});
  }
  for (const Unit& unit : plan.stripes.units) units.push_back({unit.archive, unit.lane, unit.lanes});
  std::string bytes;
  json::to_cbor({{"archives", archives}, {"stripes", plan.stripes.stripes}, {"units", units}}, bytes);
  return bytes;
}

DataPlan data_plan_from_bytes(std::string_view bytes) try {
  const json read = json::from_cbor(bytes);
  const auto number = [](const json& n) { return n.is_null() ? std::nullopt : std::optional(n.get<std::uint64_t>()); };
  DataPlan plan;
  for (const json& a : read.at("archives")) {
    plan.manifest.archives.push_back({a.at(0), a.at(1), a.at(2), a.at(3), number(a.at(4)), number(a.at(5))});
  }
  plan.stripes.stripes = read.at("stripes");
  for (const json& unit : read.at("units")) plan.stripes.units.push_back({unit.at(0), unit.at(1), unit.at(2)});
  return plan;
} catch (const json::exception& error) {
  fail(Exit::io, "a plan of the data cannot be read: {}", error.what());
}

}  // namespace millrace
