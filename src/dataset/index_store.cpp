#include "index_store.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/log.h"

namespace millrace {

using nlohmann::json;

namespace {

// 1 called archives with a sparse member compressed, 2 took macOS's ._NAME for samples, 3 composed accents in keys.
constexpr int format = 4;

// 32 hexadecimal digits of XXH3-128, then CBOR.
std::string to_bytes(const TarIndex& index) {
  json extents = json::array(), repeated = json::array();
  for (const TarIndex::Extent& extent : index.samples) {
    extents.push_back(extent.begin);
    extents.push_back(extent.end);
  }
  for (const auto& [sample, occurrence] : index.repeated) repeated.push_back({sample, occurrence});
  std::string content;
  json::to_cbor({{"format", format},
                 {"bytes", index.stamp.bytes},
                 {"changed_ns", index.stamp.changed_ns},
                 {"plain", index.plain},
                 {"extents", extents},
                 {"repeated", repeated},
                 {"broken", index.broken ? json(*index.broken) : json(nullptr)}},
                content);
  return hash128(content).hex() + content;
}

// Nothing when the bytes are damaged, of another format, or about the archive as it was before.
std::optional<TarIndex> from_bytes(std::string_view bytes, const FileStamp& stamp) try {
  constexpr std::size_t digest_digits = 32;
  if (bytes.size() < digest_digits) return std::nullopt;
  const std::string_view content = bytes.substr(digest_digits);
  if (hash128(content).hex() != bytes.substr(0, digest_digits)) return std::nullopt;
  const json read = json::from_cbor(content);
  if (read.at("format") != format || FileStamp{read.at("bytes"), read.at("changed_ns")} != stamp) return std::nullopt;
  TarIndex index;
  index.stamp = stamp;
  index.plain = read.at("plain");
  const json& extents = read.at("extents");
  for (std::size_t i = 0; i + 1 < extents.size(); i += 2) index.samples.push_back({extents[i], extents[i + 1]});
  for (const json& entry : read.at("repeated"))
    index.repeated[entry.at(0).get<std::uint64_t>()] = entry.at(1).get<int>();
  if (const json& broken = read.at("broken"); !broken.is_null()) index.broken = broken.get<std::string>();
  return index;
} catch (const json::exception&) {
  return std::nullopt;
}

std::optional<TarIndex> try_load(const std::string& file, const FileStamp& stamp) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  try {
    return from_bytes(read_file(file), stamp);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Who may read the archive may read its index, whatever the umask of this user.
void share(const std::string& file, const std::string& archive) {
  struct stat is {};
  if (::stat(archive.c_str(), &is) == 0) (void)::chmod(file.c_str(), (is.st_mode & 0444) | 0600);
}

void try_save(const std::string& file, const TarIndex& index, const std::string& archive) {
  std::error_code ignored;
  fs::create_directories(fs::path(file).parent_path(), ignored);
  try {
    write_file_atomically(file, to_bytes(index));
    share(file, archive);
  } catch (const Error& error) {
    log::debug("an index is not kept: {}", error.what());  // a folder that cannot be written is no trouble
  }
}

}  // namespace

std::optional<std::string> IndexStore::file_of(const std::string& path) const {
  if (folder_ == "never") return std::nullopt;
  const fs::path archive = fs::absolute(path);
  const std::string name = archive.filename().string();
  if (folder_ == "beside") return (archive.parent_path() / fmt::format(".{}.millrace-index", name)).string();
  const auto digest = hash64(archive.lexically_normal().string());
  return (fs::path(folder_) / fmt::format("{}.{:016x}.millrace-index", name, digest)).string();
}

std::optional<TarIndex> IndexStore::try_index_of(const std::string& path) const {
  const std::optional<std::string> file = file_of(path);
  const std::optional<FileStamp> stamp = stamp_of(path);
  return file && stamp ? try_load(*file, *stamp) : std::nullopt;
}

TarIndex IndexStore::index_of(const std::string& path) const {
  if (auto index = try_index_of(path)) return std::move(*index);
  return make_index_of(path);
}

TarIndex IndexStore::make_index_of(const std::string& path) const {
  TarIndex index = index_tar(path);
  const std::optional<std::string> file = file_of(path);
  if (file && stamp_of(path) == index.stamp) try_save(*file, index, path);
  return index;
}

}  // namespace millrace
