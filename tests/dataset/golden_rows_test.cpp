// Rows of archives made by the reference tools, against what follows from those tools' own reading (sources.py).
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "millrace/core/files.h"
#include "millrace/loader/sources.h"
#include "rows_of.h"

namespace millrace {
namespace {

using test::manifest_of;
using test::rows_of;

const std::string folder = std::string(MILLRACE_TEST_DATA) + "/sources/";

const nlohmann::json& golden_rows() {
  static const nlohmann::json rows = nlohmann::json::parse(read_file(folder + "rows.json"));
  return rows;
}

SourceConfig config_for(const std::string& file, SourceConfig::Type type) {
  SourceConfig config;
  config.type = type;
  config.path = {folder + file};
  return config;
}

// Every cut into splits, and every resumption of a split, gives the same rows.
void expect_rows(const SourceConfig& config, const std::vector<std::string>& expected) {
  const Manifest manifest = manifest_of(config);
  const auto source = make_source(config, manifest, 64);
  EXPECT_EQ(rows_of(*source, {0, 0, 1}), expected);
  const std::uint32_t max_splits = manifest.archives[0].seekable ? 4 : 1;
  for (std::uint32_t splits = 1; splits <= max_splits; ++splits) {
    for (std::uint32_t split = 0; split < splits; ++split) {
      for (const std::uint64_t first : {0, 1, 3, 9}) {
        if (first > 0 && split + (first - 1) * splits >= expected.size()) continue;  // nobody has had so many
        std::vector<std::string> rest;
        for (std::size_t row = split + first * splits; row < expected.size(); row += splits)
          rest.push_back(expected[row]);
        EXPECT_EQ(rows_of(*source, {0, split, splits}, first), rest) << split << " of " << splits << " from " << first;
      }
    }
  }
}

TEST(GoldenRows, OddTarsAsWebdatasetReadsThem) {
  for (const auto& [file, rows] : golden_rows().at("tars").items()) {
    SCOPED_TRACE(file);
    expect_rows(config_for(file, SourceConfig::Type::webdataset), rows.get<std::vector<std::string>>());
  }
}

TEST(GoldenRows, TablesOfEveryUsualLayoutWithoutNamingAColumn) {
  for (const auto& [file, rows] : golden_rows().at("tables").items()) {
    SCOPED_TRACE(file);
    expect_rows(config_for(file, SourceConfig::Type::parquet), rows.get<std::vector<std::string>>());
  }
}

TEST(GoldenRows, AKeyColumnNamesTheRows) {
  for (const auto& [file, rows] : golden_rows().at("tables by key").items()) {
    SourceConfig config = config_for(file, SourceConfig::Type::parquet);
    config.columns.key = "key";
    expect_rows(config, rows.get<std::vector<std::string>>());
  }
}

}  // namespace
}  // namespace millrace
