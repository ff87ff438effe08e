#include "millrace/latents/cache_manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>

#include "cache_files.h"
#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/secrets.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/json.h"
#include "millrace/latents/latent_cache.h"

namespace millrace {

using nlohmann::json;

constexpr const char* manifest_name = "MANIFEST.json";

static bool is_folder(const fs::path& path) {
  std::error_code error;
  const bool there = fs::is_directory(path, error);
  check_storage(error, path);
  return there;
}

static CacheManifest::Entry entry_from_json(const json& a) {
  CacheManifest::Entry entry;
  entry.archive = {a.at("path"),
                   a.at("name"),
                   a.at("bytes"),
                   a.at("seekable"),
                   optional_from_json(a.at("rows")),
                   optional_from_json(a.at("limit"))};
  entry.total = a.at("total");
  entry.broken = a.at("broken");
  return entry;
}

bool has_cache_manifest(const fs::path& folder) {
  return is_file(folder / manifest_name);
}

std::optional<CacheManifest> try_read_cache_manifest(const fs::path& folder) {
  const fs::path path = folder / manifest_name;
  if (!has_cache_manifest(folder)) return std::nullopt;
  const json document = parse_json(read_file(path), path.string());  // however long it is
  try {
    check_cache_format(document, path);
    CacheManifest manifest;
    for (const json& archive : document.at("archives")) manifest.entries.push_back(entry_from_json(archive));
    return manifest;
  } catch (const json::exception& error) {
    fail(Exit::io, "{}: {}", path.string(), error.what());
  }
}

void for_each_finished(const fs::path& folder, const Manifest& manifest,
                       const std::function<void(std::size_t number, const CacheManifest::Entry& entry)>& use) {
  const auto finished = try_read_cache_manifest(folder);
  if (!finished) return;
  std::unordered_map<std::string_view, std::size_t> numbers;
  for (std::size_t i = 0; i < manifest.archives.size(); ++i) numbers.emplace(manifest.archives[i].name, i);
  for (const auto& entry : finished->entries)
    if (const auto found = numbers.find(entry.archive.name); found != numbers.end()) use(found->second, entry);
}

void write_cache_manifest(const fs::path& folder, const CacheManifest& manifest) {
  json archives = json::array();
  for (const auto& [a, total, broken] : manifest.entries) {
    archives.push_back({{"path", without_secrets(a.path)},
                        {"name", a.name},
                        {"bytes", a.bytes},
                        {"seekable", a.seekable},
                        {"rows", optional_to_json(a.rows)},
                        {"limit", optional_to_json(a.limit)},
                        {"total", total},
                        {"broken", broken}});
  }
  const json document = {{"format", 1}, {"archives", archives}};
  write_file_atomically(folder / manifest_name, dump_any(document, 1) + "\n");
}

// b/00000 for 00000, or the other way round: beside archives of the same names, one has a longer name than alone.
static bool is_longer_name(const Archive& a, const Archive& b) {
  return a.name.ends_with("/" + b.name) || b.name.ends_with("/" + a.name);
}

// What a later run calls the archive, by its name, else by its path, else by its size.
static std::optional<std::size_t> find_same(const Archive& earlier, const std::vector<CacheManifest::Entry>& later,
                                            const std::vector<std::size_t>& alike) {
  const auto find = [&](const auto& is_same) -> std::optional<std::size_t> {
    const auto found = std::ranges::find_if(alike, [&](std::size_t i) { return is_same(later[i].archive); });
    return found == alike.end() ? std::nullopt : std::optional(*found);
  };
  if (const auto same = find([&](const Archive& a) { return a.name == earlier.name; })) return same;
  if (const auto same =
          find([&](const Archive& a) { return without_secrets(a.path) == without_secrets(earlier.path); }))
    return same;
  return find([&](const Archive& a) { return a.bytes > 0 && a.bytes == earlier.bytes && is_longer_name(a, earlier); });
}

// What was read to its end tells more than what a limit has cut.
static bool has_read_more(const CacheManifest::Entry& earlier, const CacheManifest::Entry& later) {
  return earlier.archive.name == later.archive.name && earlier.archive.bytes == later.archive.bytes &&
         later.archive.limit && (!earlier.archive.limit || *earlier.archive.limit > *later.archive.limit);
}

static std::optional<CacheManifest> earlier_manifest(const fs::path& folder) {
  try {
    return try_read_cache_manifest(folder);
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    log::warning("{}; it is written anew", error.what());
    return std::nullopt;
  }
}

std::vector<std::string> add_to_cache_manifest(const fs::path& folder, const CacheManifest& finished) {
  CacheManifest manifest = finished;
  const auto last_name = [](const Archive& archive) { return fs::path(archive.name).filename().string(); };
  std::unordered_map<std::string, std::vector<std::size_t>> by_name;  // of `finished`
  for (std::size_t i = 0; i < finished.entries.size(); ++i)
    by_name[last_name(finished.entries[i].archive)].push_back(i);
  std::vector<std::string> others;
  const auto earlier = earlier_manifest(folder).value_or(CacheManifest{});
  for (const auto& entry : earlier.entries) {
    const auto same = find_same(entry.archive, finished.entries, by_name[last_name(entry.archive)]);
    if (same && has_read_more(entry, finished.entries[*same])) manifest.entries[*same] = entry;
    if (same || !is_folder(latent_folder(folder, entry.archive.name))) continue;  // somebody has removed its latents
    manifest.entries.push_back(entry);
    others.push_back(entry.archive.name);
  }
  std::ranges::sort(manifest.entries, {}, [](const auto& entry) { return entry.archive.name; });
  write_cache_manifest(folder, manifest);
  return others;
}

Manifest make_latent_manifest(const fs::path& folder, std::optional<std::int64_t> limit, const std::string& section) {
  if (!is_latent_cache(folder)) {
    throw Error(
        Exit::io,
        fmt::format("{}.path: {} is no latent cache (it has no {})", section, folder.string(), description_name),
        "millrace preprocess makes one in encode.cache");
  }
  const auto cached = try_read_cache_manifest(folder);
  if (!cached) {
    throw Error(Exit::io,
                fmt::format("{}.path: {} is not complete (it has no {})", section, folder.string(), manifest_name),
                "run millrace preprocess again: it resumes where it stopped; or train on the images with encode.cache");
  }
  Manifest manifest;
  auto left = limit ? static_cast<std::uint64_t>(*limit) : std::numeric_limits<std::uint64_t>::max();
  for (const auto& [archive, total, broken] : cached->entries) {
    if (left == 0) break;
    Archive& used = manifest.archives.emplace_back(archive);
    const std::uint64_t samples = total - (broken ? 1 : 0);
    // The run that filled the cache had other stripes, so it may have counted less far, or not at all.
    if (used.seekable) used.rows = std::max(samples, used.rows.value_or(0));
    if (limit && samples >= left) used.limit = used.rows = left;
    left -= std::min(left, samples);
  }
  return manifest;
}

}  // namespace millrace
