#pragma once
#include <optional>
#include <string_view>

namespace millrace {

enum class ArchiveKind { tar, parquet, list };

struct ArchiveName {
  ArchiveKind kind = ArchiveKind::tar;
  std::string_view stem;  // of the path, what stands before the suffix
};

// What the name of a file of a data set says, in letters of either case: .tar, also compressed, .parquet, or a list
// with columns (io/lists.h); nothing for others.
std::optional<ArchiveName> try_archive_name(std::string_view path);
bool is_kind(std::string_view path, ArchiveKind kind);

}  // namespace millrace
