#pragma once
#include <map>
#include <string>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/download/download_config.h"
#include "millrace/io/parquet.h"
#include "millrace/io/tar.h"
#include "server.h"

namespace millrace::test {

inline std::string golden_image(const std::string& name) {
  return read_file(fs::path(MILLRACE_TEST_DATA) / "transform" / name);
}

// A configuration for servers on this machine.
inline DownloadConfig local_config(const fs::path& list, const fs::path& out) {
  DownloadConfig config;
  config.urls = {list.string()};
  config.out = {out.string(), true};
  config.columns.url = "url";
  config.columns.caption = "caption";
  config.rows_per_file = 3;
  config.timeout = Duration::seconds(100);  // this machine may be busy
  config.retries = 0;
  config.allow_networks = {"127.0.0.1/32"};
  return config;
}

// Every member of a tar by name.
inline std::map<std::string, std::string> members_of(const fs::path& tar) {
  std::map<std::string, std::string> members;
  TarReader reader(tar.string());
  while (const auto sample = reader.next())
    for (const auto& [field, bytes] : sample->fields) members[sample->key + "." + field] = bytes;
  return members;
}

// One column of a Parquet file.
inline std::vector<Cell> column_of(const fs::path& table, const std::string& name) {
  std::vector<Cell> cells;
  ParquetReader reader(table, {name});
  while (auto row = reader.next()) cells.push_back(std::move(row->at(0)));
  return cells;
}

// Arrow's name of its type.
inline std::string type_of_column(const fs::path& table, const std::string& name) {
  for (const ParquetColumn& column : parquet_schema(table))
    if (column.name == name) return column.type;
  return "no column";
}

}  // namespace millrace::test
