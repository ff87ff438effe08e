#include "millrace/io/archive_name.h"

#include <string>
#include <utility>

#include "millrace/core/text.h"
#include "millrace/io/lists.h"

namespace millrace {

namespace {

constexpr std::pair<std::string_view, ArchiveKind> archive_suffixes[] = {
    {".tar", ArchiveKind::tar},        {".tar.gz", ArchiveKind::tar},  {".tgz", ArchiveKind::tar},
    {".tar.bz2", ArchiveKind::tar},    {".tbz2", ArchiveKind::tar},    {".tar.xz", ArchiveKind::tar},
    {".txz", ArchiveKind::tar},        {".tar.zst", ArchiveKind::tar}, {".tar.zstd", ArchiveKind::tar},
    {".parquet", ArchiveKind::parquet}};

}  // namespace

std::optional<ArchiveName> try_archive_name(std::string_view path) {
  const std::string name = lower(path);
  for (const auto& [suffix, kind] : archive_suffixes)
    if (name.size() > suffix.size() && name.ends_with(suffix))
      return ArchiveName{kind, path.substr(0, path.size() - suffix.size())};
  const auto format = list_format(path);
  if (!format || *format == ListFormat::txt) return std::nullopt;
  std::string_view stem = path;
  if (name.ends_with(".gz")) stem.remove_suffix(3);
  stem = stem.substr(0, stem.rfind('.'));
  return stem.empty() ? std::nullopt : std::optional(ArchiveName{ArchiveKind::list, stem});
}

bool is_kind(std::string_view path, ArchiveKind kind) {
  const auto name = try_archive_name(path);
  return name && name->kind == kind;
}

}  // namespace millrace
