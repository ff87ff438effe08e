#include "millrace/latents/inspect_latent_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/storage_error.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/latents/latent_file.h"

namespace millrace {

using nlohmann::json;

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

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  auto entries = list_folder(folder, error);
  check_storage(error, folder);
  return entries;
}

// Goes through a cache as far as it can be read: what has been found until then is told, too.
class CacheInspection {
 public:
  explicit CacheInspection(const fs::path& folder) : folder_(folder) {}

  json run() {
    try {
      inspect();
    } catch (const Error& error) {
      problems_.emplace_back(error.what());
    }
    report_.update({{"problems", problems_},
                    {"archives", rows_.size()},
                    {"rows", accepted_ + rejected_},
                    {"accepted", accepted_},
                    {"rejected", rejected_},
                    {"files", files_},
                    {"bytes", bytes_}});
    return report_;
  }

 private:
  void inspect() {
    const auto description = read_cache_description(folder_);
    report_["fingerprint"] = description.fingerprint;
    report_["moments"] = description.shape.moments;
    report_[description.shape.text_name()] = description.shape.text;
    const auto manifest = try_read_cache_manifest(folder_);
    report_["complete"] = manifest.has_value();
    for (const auto& archive : entries_of(folder_ / "rows")) inspect_archive(archive.path(), description.shape);
    if (manifest) look_for_missing_rows(*manifest);
  }

  void inspect_archive(const fs::path& folder, const EncodingShape& shape) {
    RowsOfArchive rows;
    for (const auto& entry : entries_of(folder)) {
      if (entry.path().extension() != ".json") continue;
      try {
        inspect_file(entry.path(), shape, rows);
      } catch (const Error& error) {
        problems_.emplace_back(error.what());
      }
    }
    const auto [accepted, rejected] = rows.count();
    accepted_ += accepted;
    rejected_ += rejected;
    if (!rows.archive().empty()) rows_[rows.archive()] = accepted + rejected;
  }

  void inspect_file(const fs::path& path, const EncodingShape& shape, RowsOfArchive& rows) {
    const auto info = read_latent_file_info(path);
    if (hash_file(info.path) != info.digest || fs::file_size(info.path) != info.bytes)
      fail(Exit::io, "{}: its size or digest is not the one that was written", info.path.string());
    const LatentFile file(info, shape);
    rows.add(info);
    bytes_ += info.bytes;
    ++files_;
  }

  // A complete cache holds all that its archives had.
  void look_for_missing_rows(const CacheManifest& manifest) {
    for (const auto& [archive, total, broken] : manifest.entries) {
      const auto found = rows_.find(archive.name);
      const std::uint64_t rows = total - (broken ? 1 : 0), there = found == rows_.end() ? 0 : found->second;
      if (there < rows)
        problems_.push_back(
            fmt::format("{} of {} rows of archive {} are in no file", rows - there, rows, archive.name));
    }
  }

  const fs::path folder_;
  json report_ = {{"kind", "cache"}, {"complete", false}};
  std::vector<std::string> problems_;
  std::map<std::string, std::uint64_t> rows_;  // of each archive, in some file
  std::uint64_t accepted_ = 0, rejected_ = 0, files_ = 0, bytes_ = 0;
};

}  // namespace

json inspect_latent_cache(const fs::path& folder) {
  return CacheInspection(folder).run();
}

}  // namespace millrace
