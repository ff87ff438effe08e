#include "millrace/dataset/manifest.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <system_error>

#include "archive_names.h"
#include "millrace/core/files.h"
#include "millrace/core/parallel_for.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/dataset/table.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/input_file.h"
#include "millrace/io/net/urls.h"
#include "millrace/io/tar.h"
#include "sample_columns.h"
#include "synthetic_source.h"

namespace millrace {

namespace {

// Whether the samples of a tar can be had without reading all in front of them; a compressed one has to be unpacked to
// get anywhere in it. Its name tells, as a rule; of others their first header.
bool is_plain_tar(const std::string& file) {
  if (lower(file).ends_with(".tar")) return true;
  if (try_archive_name(file)) return false;
  constexpr std::string_view magic = "ustar";
  constexpr std::uint64_t place = 257;
  std::string bytes(magic.size(), '\0');
  return InputFile(file).read_at(place, std::as_writable_bytes(std::span(bytes))) == bytes.size() && bytes == magic;
}

Archive describe_archive(const std::string& path, const std::string& name) {
  Archive archive{.path = path, .name = name, .rows = {}, .limit = {}};
  archive.seekable = is_table(path);
  const std::string file = local_path(path);
  if (file.empty()) return archive;
  struct stat status {};  // kind and size by one request to a file server
  if (::stat(file.c_str(), &status) != 0) check_storage({errno, std::system_category()}, file);
  if (!S_ISREG(status.st_mode)) return archive;
  archive.bytes = static_cast<std::uint64_t>(status.st_size);
  if (!archive.seekable) archive.seekable = is_plain_tar(file);
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

// Of a broken table none, of a broken tar those before the break; its reader will say so.
std::uint64_t rows_up_to(std::uint64_t most, const Archive& archive) {
  if (!is_table(archive.path)) return TarReader(archive.path).skip(most);
  try {
    return count_table_rows(archive.path, most);
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
    return 0;
  }
}

// Nothing of what can be read only once, nor of what storage keeps away.
std::optional<std::uint64_t> try_rows_up_to(std::uint64_t most, const Archive& archive) try {
  if (!archive.seekable && archive.bytes == 0) return std::nullopt;
  return rows_up_to(most, archive);
} catch (const AccessError&) {
  return std::nullopt;
}

// Fills `rows` of several archives at once. One that cannot be counted may lie behind the limit: who comes to it sees.
void count_ahead(std::span<Archive> archives, std::uint64_t most) {
  const auto count = [&](std::size_t i) {
    Archive& archive = archives[i];
    archive.rows = try_rows_up_to(most, archive);
    ++phase::moves;  // all other ranks wait for this one
  };
  parallel_for(archives.size(), count, /*calls_for_a_thread=*/1);
}

// Keeps the first rows of the manifest.
void apply_limit(Manifest& manifest, const SourceConfig& source) {
  constexpr std::size_t most_at_once = 32;
  const auto limit = static_cast<std::uint64_t>(*source.limit);
  std::uint64_t rows = 0;
  std::size_t used = 0, counted = 0;
  for (std::size_t at_once = 1; used < manifest.archives.size() && rows < limit; ++used) {
    if (used == counted) {
      const std::size_t archives = std::min(at_once, manifest.archives.size() - used);
      count_ahead(std::span(manifest.archives).subspan(used, archives), limit - rows);
      counted += archives;
      at_once = std::min(2 * at_once, most_at_once);  // a small limit lies in the first archives
    }
    Archive& archive = manifest.archives[used];
    if (local_path(archive.path).empty() && !archive.seekable) {
      throw Error(Exit::usage,
                  fmt::format("{}.limit has to count the rows of {} before it is read", source.section, archive.path),
                  fmt::format("use files, or leave {}.limit at null", source.section));
    }
    if (stop::requested()) fail(Exit::requeue, "told to stop while the rows of {} were counted", archive.path);
    archive.rows = archive.rows ? std::min(*archive.rows, limit - rows) : rows_up_to(limit - rows, archive);
    ++phase::moves;  // all other ranks wait for this one
    rows += *archive.rows;
    if (rows == limit) archive.limit = archive.rows;
  }
  manifest.archives.resize(used);
}

Archives archives_of(SourceConfig::Type type) {
  if (type == SourceConfig::Type::parquet || type == SourceConfig::Type::latents) return Archives::parquet;
  if (type == SourceConfig::Type::class_labels) return Archives::one_kind;
  return type == SourceConfig::Type::csv ? Archives::list : Archives::tar;
}

// What the files are goes by their names; another kind than `type` says is most likely a mistake in one of the two.
void check_kind(const std::vector<std::string>& paths, const SourceConfig& source) {
  using Type = SourceConfig::Type;
  const bool class_tables = source.type == Type::class_labels && is_table(paths.front());
  for (const std::string& path : paths) {
    const bool table = is_table(path), parquet = is_kind(path, ArchiveKind::parquet);
    if (!table && path != "-" && !is_pipe(path) && !is_http(path) && !is_s3(path) && local_path(path).empty())
      throw Error(Exit::usage, fmt::format("{}.path: {}: no such scheme", source.section, path),
                  "use a path, http(s)://, s3://, or a command as pipe:..., for example 'pipe:gsutil cat gs://...'");
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
      const std::vector<TableColumn> table = table_columns(archive.path);
      if (table.empty()) continue;
      const auto columns = choose_columns(table, source, archive.path);
      const auto& image = columns.names[SampleColumns::image];
      if (std::ranges::find(table, image, &TableColumn::name)->holds != ColumnHolds::nothing) return;
    } catch (const Error& error) {
      if (!is_damage(error)) throw;
    }
  }
}

}  // namespace

Manifest list_archives(const SourceConfig& source, bool allow_pipes) {
  constexpr std::int64_t synthetic_rows = 64 * synthetic_archive_rows;
  if (source.type == SourceConfig::Type::synthetic) return list_synthetic(source.limit.value_or(synthetic_rows));
  if (source.path.empty())
    throw Error(Exit::usage, source.section + ".path is not set", source.section + ".path='/data/{00000..00127}.tar'");
  const std::vector<std::string> paths = expand_urls(source.path, archives_of(source.type));
  if (paths.empty()) throw Error(Exit::usage, source.section + ".path names no archive");
  if (!allow_pipes && std::any_of(paths.begin(), paths.end(), is_pipe)) {
    throw Error(Exit::usage, source.section + ".path holds a pipe: address, which runs a shell command",
                "set data.allow_pipes=true if that is what you want");
  }
  check_kind(paths, source);
  const std::vector<std::string> names = archive_names(paths, source.section);
  Manifest manifest;
  manifest.archives.resize(paths.size());
  parallel_for(paths.size(), [&](std::size_t i) { manifest.archives[i] = describe_archive(paths[i], names[i]); });
  std::sort(manifest.archives.begin(), manifest.archives.end(),
            [](const Archive& a, const Archive& b) { return a.name < b.name; });
  if (source.type != SourceConfig::Type::latents) check_columns(manifest, source);
  if (source.limit) apply_limit(manifest, source);
  return manifest;
}

void count_rows(Manifest& manifest, std::uint64_t most) {
  const auto count = [&](std::size_t i) {
    Archive& archive = manifest.archives[i];
    if (archive.seekable && !archive.rows) archive.rows = rows_up_to(most, archive);
    ++phase::moves;  // all other ranks wait for this one
  };
  parallel_for(manifest.archives.size(), count, /*calls_for_a_thread=*/1);
}

}  // namespace millrace
