#include "millrace/io/archive_name.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace {
namespace {

TEST(ArchiveName, IsToldByTheSuffixInEitherCase) {
  const std::vector<std::pair<const char*, ArchiveKind>> known = {
      {"a/b.c.tar", ArchiveKind::tar},         {"a/b.c.tar.gz", ArchiveKind::tar},
      {"a/b.c.tgz", ArchiveKind::tar},         {"a/b.c.Tar.ZSTD", ArchiveKind::tar},
      {"a/b.c.TAR", ArchiveKind::tar},         {"a/b.c.parquet", ArchiveKind::parquet},
      {"a/b.c.PARQUET", ArchiveKind::parquet}, {"a/b.c.csv", ArchiveKind::list},
      {"a/b.c.CSV.gz", ArchiveKind::list},     {"a/b.c.ndjson.GZ", ArchiveKind::list}};
  for (const auto& [path, kind] : known) {
    const auto name = try_archive_name(path);
    ASSERT_TRUE(name) << path;
    EXPECT_EQ(name->kind, kind) << path;
    EXPECT_EQ(name->stem, "a/b.c") << path;
    EXPECT_TRUE(is_kind(path, kind)) << path;
  }
  for (const char* path :
       {"", "a", "a.txt", "a.gz", ".tar", "tar", "a.tar/b", "a.parquet.gz", "a.json", "a.tar.txt", ".csv", ".csv.gz"})
    EXPECT_FALSE(try_archive_name(path)) << path;
}

}  // namespace
}  // namespace millrace
