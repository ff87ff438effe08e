#include "cached_archive.h"

#include <algorithm>
#include <iterator>

#include "cache_files.h"
#include "millrace/core/abandoned.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/json.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/cached_source.h"
#include "millrace/latents/latent_cache.h"

namespace millrace {

namespace {

// Beside an archive's latent files: {"rows", "bytes"}, where the archive ends. Without .json behind it, which would
// make it a latent file's.
constexpr const char* end_name = "END";

fs::file_time_type time_of(const fs::path& folder) {
  std::error_code none_yet;
  const auto time = fs::last_write_time(folder, none_yet);
  check_storage(none_yet, folder);
  return time;
}

// Whether the writer of a latent file was killed before its NAME.json. Looked at once more: a listing may lack what is
// renamed meanwhile.
bool is_without_description(const fs::path& latent_file) {
  std::error_code error;
  return !fs::exists(fs::path(latent_file).replace_extension(".json"), error) && !error &&
         is_untouched_for_a_day(fs::directory_entry(latent_file, error)) && !error;
}

// The NAME.json files, sorted. What a killed process has left beside them goes; in a finished cache no latent file,
// since one without its .json is then half of what somebody copies there, with the times of the original.
std::vector<fs::path> files_in(const fs::path& folder, bool is_finished) {
  std::vector<fs::path> paths, latent_files, abandoned;
  std::error_code error;  // a folder that is not there yet has none
  for (const auto& entry : list_folder(folder, error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
    if (is_abandoned(entry)) abandoned.push_back(entry.path());
    if (entry.path().extension() == ".h5") latent_files.push_back(entry.path());
  }
  check_storage(error, folder);
  std::sort(paths.begin(), paths.end());
  for (const auto& path : latent_files)
    if (!is_finished && !std::ranges::binary_search(paths, fs::path(path).replace_extension(".json")) &&
        is_without_description(path))
      abandoned.push_back(path);
  for (const auto& path : abandoned)
    if (path.extension() == ".h5")
      log::warning("{} is deleted: it has no .json beside it, so whoever wrote it was ended before it was whole",
                   path.string());
  std::error_code ignored;  // it may be somebody else's cache
  for (const auto& path : abandoned) fs::remove(path, ignored);
  return paths;
}

}  // namespace

CachedArchive::File::File(LatentFileInfo read)
    : info(std::move(read)), last_row(info.rows.empty() ? 0 : std::ranges::max(info.rows)) {}

void CachedArchive::File::forget() {
  const std::lock_guard lock(mutex);
  opened.reset();
}

CachedArchive::CachedArchive(const fs::path& cache, const Archive& archive, const EncodingShape& shape)
    : folder_(latent_folder(cache, archive.name)),
      modified_(time_of(folder_)),
      shape_(shape),
      archive_bytes_(archive.bytes) {
  for (const auto& path : files_in(folder_, has_cache_manifest(cache))) add(path, archive);
  std::stable_sort(places_.begin(), places_.end(), [](const CachedPlace& a, const CachedPlace& b) {
    return std::pair(a.row, a.standing()) < std::pair(b.row, b.standing());
  });
  end_ = find_end();
}

// Whatever is odd about the file, the archive is asked.
std::optional<std::uint64_t> CachedArchive::find_end() const {
  const fs::path path = folder_ / end_name;
  if (!is_file(path)) return std::nullopt;
  try {
    const auto document = read_json_object(path);
    const auto &rows = document.at("rows"), &bytes = document.at("bytes");
    if (!rows.is_number_unsigned() || bytes != archive_bytes_) return std::nullopt;
    const bool is_in_front = !places_.empty() && places_.back().row >= rows.get<std::uint64_t>();
    return is_in_front ? std::nullopt : std::optional(rows.get<std::uint64_t>());
  } catch (const StorageError&) {
    throw;
  } catch (const Error&) {
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void CachedArchive::remember_end(std::uint64_t rows) const {
  if (end_ == rows) return;
  std::error_code ignored;
  fs::create_directories(folder_, ignored);
  try {
    const nlohmann::json document = {{"rows", rows}, {"bytes", archive_bytes_}};
    write_file_atomically(folder_ / end_name, document.dump() + "\n");
  } catch (const Error&) {  // it may be somebody else's cache
  }
}

void CachedArchive::add(const fs::path& path, const Archive& archive) {
  LatentFileInfo info;
  try {
    info = read_latent_file_info(path);
    std::error_code error;
    const auto bytes = fs::file_size(info.path, error);
    check_storage(error, info.path);
    if (error || bytes != info.bytes) fail(Exit::io, "{}: missing, or not of {} bytes", info.path.string(), info.bytes);
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    log::warning("{}; its rows count as missing", error.what());
    return;
  }
  if (info.archive != archive.name) return;
  if (info.archive_bytes && archive.bytes && info.archive_bytes != archive.bytes)
    throw Error(Exit::usage,
                fmt::format("{} was made from {} when it had {} bytes; now it has {}", info.path.string(), archive.path,
                            info.archive_bytes, archive.bytes),
                fmt::format("delete {} to encode the archive anew", folder_.string()));
  const auto number = static_cast<std::uint32_t>(files_.size());
  for (std::uint32_t i = 0; i < info.rows.size(); ++i) places_.push_back({info.rows[i], number, i});
  for (const auto& [row, reason] : info.rejected)
    places_.push_back({row, CachedPlace::no_file, static_cast<std::uint32_t>(reason)});
  files_.push_back(std::make_unique<File>(std::move(info)));
}

bool CachedArchive::up_to_date() const {
  return time_of(folder_) == modified_;
}

std::span<const CachedPlace> CachedArchive::find(std::uint64_t row) const {
  const auto first = std::ranges::lower_bound(places_, row, {}, &CachedPlace::row);
  return {first, std::ranges::upper_bound(first, places_.end(), row, {}, &CachedPlace::row)};
}

const std::string* CachedArchive::non_finite(const CachedPlace& place) const {
  const auto& samples = files_[place.file]->info.non_finite;
  const auto found = samples.find(place.row);
  return found == samples.end() ? nullptr : &found->second;
}

// A reader goes through the rows in their order, so a file whose last one lies behind it is done with. Where too many
// take turns, all but the newest stay, which so serve some of the rows.
EncodedSample CachedArchive::load(const CachedPlace& place, Opened& opened) const {
  if (!opened.contains(place.file)) {
    std::erase_if(opened, [&](const auto& held) { return files_[held.first]->last_row < place.row; });
    if (opened.size() == cached_files_of_a_reader) opened.erase(std::prev(opened.end()));
    opened[place.file] = open(*files_[place.file]);
  }
  try {
    return opened[place.file]->read(place.index);
  } catch (const StorageError&) {  // the file may be another one on the server: it is opened anew, by all its readers
    opened.erase(place.file);
    files_[place.file]->forget();
    throw;
  }
}

std::optional<EncodedSample> CachedArchive::try_load(const CachedPlace& place, Opened& opened) const {
  File& file = *files_[place.file];
  if (file.damaged) return std::nullopt;
  try {
    return load(place, opened);
  } catch (const StorageError&) {
    throw;
  } catch (const Error& error) {
    if (!file.damaged.exchange(true)) log::warning("{}; its rows count as missing", error.what());
    return std::nullopt;
  }
}

std::shared_ptr<const LatentFile> CachedArchive::open(File& file) const {
  std::lock_guard lock(file.mutex);
  if (auto opened = file.opened.lock()) return opened;
  if (!file.verified && hash_file(file.info.path) != file.info.digest)
    throw Error(Exit::io, fmt::format("{}: its digest is not the one that was written", file.info.path.string()),
                "delete it and its .json, and run millrace preprocess again");
  file.verified = true;
  auto opened = std::make_shared<const LatentFile>(file.info, shape_);
  file.opened = opened;
  return opened;
}

}  // namespace millrace
