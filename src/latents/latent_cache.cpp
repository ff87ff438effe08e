#include "millrace/latents/latent_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/secrets.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/hdf5.h"
#include "millrace/io/json.h"
#include "millrace/latents/latent_file.h"

namespace millrace {

using nlohmann::json;

namespace {

constexpr const char* description_name = "CACHE.json";
constexpr const char* manifest_name = "MANIFEST.json";
constexpr const char* null_text_name = "null_caption.h5";
constexpr std::int64_t max_values = 1 << 28;  // of one sample

std::vector<std::int64_t> read_shape(const json& shape, std::size_t rank, const fs::path& path) {
  auto sides = shape.get<std::vector<std::int64_t>>();
  std::int64_t values = 1;
  for (const auto side : sides)
    if (side < 1 || __builtin_mul_overflow(values, side, &values) || values > max_values)
      fail(Exit::io, "{}: impossible shape {}", path.string(), shape.dump());
  if (sides.size() != rank) fail(Exit::io, "{}: impossible shape {}", path.string(), shape.dump());
  return sides;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  const bool there = fs::is_regular_file(path, error);
  check_storage(error, path);
  return there;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  const bool there = fs::is_directory(path, error);
  check_storage(error, path);
  return there;
}

void check_format(const json& document, const fs::path& path) {
  if (document.at("format") != 1)
    throw Error(Exit::io, fmt::format("{}: a latent cache of format {}", path.string(), document.at("format").dump()),
                "this version reads format 1");
}

}  // namespace

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1},
                         [](std::size_t n, std::int64_t side) { return n * static_cast<std::size_t>(side); });
}

std::size_t encoding_bytes(const EncodingShape& shape) {
  const std::size_t text_number = shape.has_tokens() ? sizeof(std::int32_t) : sizeof(std::uint16_t);
  return sizeof(std::uint16_t) * count_of(shape.moments) + text_number * count_of(shape.text);
}

bool is_latent_cache(const fs::path& folder) {
  return is_file(folder / description_name);
}

// `entry`: what CACHE.json says of it.
static std::vector<std::uint16_t> read_null_text(const fs::path& folder, const json& entry,
                                                 const std::vector<std::int64_t>& shape) {
  const fs::path path = folder / null_text_name;
  if (entry.at("xxh3_128") != hash_file(path).hex())
    fail(Exit::io, "{}: its digest is not the one in {}", path.string(), description_name);
  const Hdf5Reader file(path);
  const auto rows = static_cast<std::uint64_t>(shape[0]);
  if (file.expect("text", DType::f16, {shape[1]}) != rows)
    fail(Exit::io, "{}: not of the shape in {}", path.string(), description_name);
  std::vector<std::uint16_t> text(count_of(shape));
  file.read("text", 0, rows, std::as_writable_bytes(std::span(text)));
  return text;
}

// Returns its entry in CACHE.json.
static json write_null_text(const fs::path& folder, const CacheDescription& description) {
  const fs::path temporary = temporary_name((folder / null_text_name).string());
  Hdf5Writer file(temporary);
  file.create("text", DType::f16, {description.shape.text[1]});
  file.append("text", std::as_bytes(std::span(description.null_text)));
  file.close();
  const auto written = publish_file(temporary, folder / null_text_name);
  return {{"file", null_text_name}, {"xxh3_128", written.digest.hex()}};
}

CacheDescription read_cache_description(const fs::path& folder) {
  const fs::path path = folder / description_name;
  try {
    const json document = read_json(path);
    check_format(document, path);
    CacheDescription description;
    description.fingerprint = document.at("fingerprint");
    description.shape.moments = read_shape(document.at("moments"), 3, path);
    if (document.contains("tokens")) {
      description.shape.text = read_shape(document.at("tokens"), 1, path);
      return description;
    }
    description.shape.text = read_shape(document.at("text"), 2, path);
    description.null_text = read_null_text(folder, document.at("null_caption"), description.shape.text);
    return description;
  } catch (const json::exception& error) {
    fail(Exit::io, "{}: {}", path.string(), error.what());
  }
}

void write_cache_description(const fs::path& folder, const CacheDescription& description) {
  if (is_latent_cache(folder)) return;
  make_directories(folder);
  const auto& shape = description.shape;
  json document = {{"format", 1},
                   {"fingerprint", description.fingerprint},
                   {"moments", shape.moments},
                   {shape.text_name(), shape.text}};
  if (!shape.has_tokens()) document["null_caption"] = write_null_text(folder, description);
  write_file_if_absent(folder / description_name, format_json(document));  // the first of two jobs that begin at once
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
    check_format(document, path);
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
  if (const auto same = find([&](const Archive& a) { return without_secrets(a.path) == earlier.path; })) return same;
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

fs::path latent_folder(const fs::path& cache, const std::string& archive) {
  constexpr std::size_t longest = 80;
  std::string name = archive.substr(0, longest);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && !std::strchr("._-", c)) c = '_';
  if (name != archive || name.starts_with('.')) name = fmt::format("_{}-{:016x}", name, hash64(archive));
  return cache / "rows" / name;
}

fs::path latent_scratch(const fs::path& cache) {
  return cache / "tmp";
}

void clear_latent_scratch(const fs::path& cache) {
  std::error_code ignored;
  for (const auto& file : list_folder(cache, ignored))
    if (is_abandoned(file)) fs::remove(file.path(), ignored);
  for (const auto& file : list_folder(latent_scratch(cache), ignored)) {
    const auto name = file.path().stem().string();
    if (is_abandoned_by(name.substr(name.find('-') + 1), file)) fs::remove(file.path(), ignored);
  }
}

namespace {

// The rows that the files of one archive tell of. One that was asked for again is in several of them.
class RowsOfArchive {
 public:
  void add(const LatentFileInfo& info) {
    for (const auto row : info.rows) (info.non_finite.contains(row) ? rejected_ : accepted_).push_back(row);
    for (const auto& [row, reason] : info.rejected) rejected_.push_back(row);
    archive_ = info.archive;
  }
  const std::string& archive() const { return archive_; }
  std::pair<std::uint64_t, std::uint64_t> count() {
    keep_one_each(accepted_);
    keep_one_each(rejected_);
    std::vector<std::uint64_t> lost;
    std::ranges::set_difference(rejected_, accepted_, std::back_inserter(lost));
    return {accepted_.size(), lost.size()};
  }

 private:
  static void keep_one_each(std::vector<std::uint64_t>& rows) {
    std::ranges::sort(rows);
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  }

  std::string archive_;
  std::vector<std::uint64_t> accepted_, rejected_;
};

}  // namespace

// What a complete cache must hold, and does not: `known` are the rows of each archive that are in some file.
static std::vector<std::string> rows_in_no_file(const std::optional<CacheManifest>& manifest,
                                                const std::map<std::string, std::uint64_t>& known) {
  std::vector<std::string> problems;
  if (!manifest) return problems;
  for (const auto& [archive, total, broken] : manifest->entries) {
    const auto found = known.find(archive.name);
    const std::uint64_t rows = total - (broken ? 1 : 0), there = found == known.end() ? 0 : found->second;
    if (there < rows)
      problems.push_back(fmt::format("{} of {} rows of archive {} are in no file", rows - there, rows, archive.name));
  }
  return problems;
}

json inspect_latent_cache(const fs::path& folder) {
  json report = {{"kind", "cache"}, {"complete", false}, {"problems", json::array()}};
  std::map<std::string, std::uint64_t> known;  // rows of each archive
  std::uint64_t accepted = 0, rejected = 0, files = 0, bytes = 0;
  const auto look_at = [&](const fs::path& path, const EncodingShape& shape, RowsOfArchive& rows) {
    const auto info = read_latent_file_info(path);
    if (hash_file(info.path) != info.digest || fs::file_size(info.path) != info.bytes)
      fail(Exit::io, "{}: its size or digest is not the one that was written", info.path.string());
    const LatentFile file(info, shape);
    rows.add(info);
    bytes += info.bytes;
    ++files;
  };
  try {
    const auto description = read_cache_description(folder);
    report["fingerprint"] = description.fingerprint;
    report["moments"] = description.shape.moments;
    report[description.shape.text_name()] = description.shape.text;
    const auto manifest = try_read_cache_manifest(folder);
    report["complete"] = manifest.has_value();
    const auto list = [](const fs::path& path) {
      std::error_code error;
      auto entries = list_folder(path, error);
      check_storage(error, path);
      return entries;
    };
    for (const auto& archive : list(folder / "rows")) {
      RowsOfArchive rows;
      for (const auto& entry : list(archive.path())) {
        if (entry.path().extension() != ".json") continue;
        try {
          look_at(entry.path(), description.shape, rows);
        } catch (const Error& error) {
          report["problems"].push_back(error.what());
        }
      }
      const auto [taken, lost] = rows.count();
      accepted += taken;
      rejected += lost;
      if (!rows.archive().empty()) known[rows.archive()] = taken + lost;
    }
    for (const auto& problem : rows_in_no_file(manifest, known)) report["problems"].push_back(problem);
  } catch (const Error& error) {
    report["problems"].push_back(error.what());
  }
  report.update({{"archives", known.size()},
                 {"rows", accepted + rejected},
                 {"accepted", accepted},
                 {"rejected", rejected},
                 {"files", files},
                 {"bytes", bytes}});
  return report;
}

}  // namespace millrace
