// Archives, tables and lists: fields and rows, and of those with images what training would find in them.
#include <array>
#include <span>

#include "inspect/inspect.h"
#include "inspect/sample_survey.h"
#include "millrace/core/error.h"
#include "millrace/dataset/source.h"
#include "millrace/io/lists.h"
#include "millrace/io/parquet.h"
#include "millrace/io/tar.h"
#include "millrace/loader/sources.h"

namespace millrace {
namespace {

using nlohmann::json;
namespace stdfs = std::filesystem;

constexpr std::array caption_fields = {"txt"}, class_fields = {"cls"};

const std::string* find_field(const TarSample& sample, std::span<const char* const> names) {
  for (const char* name : names)
    for (const auto& [field, bytes] : sample.fields)
      if (field == name) return &bytes;
  return nullptr;
}

void survey(const TarSample& sample, SampleSurvey& samples) {
  const auto* caption = find_field(sample, caption_fields);
  if (caption) samples.add_caption(*caption);
  const auto* image = find_field(sample, image_fields);
  if (!image) return samples.reject(sample.key, RejectReason::missing_image);
  if (!caption && !find_field(sample, class_fields)) return samples.reject(sample.key, RejectReason::missing_caption);
  samples.add_image(sample.key, *image);
}

// Reads all rows: a count of the cells that are not null for every column.
template <class Reader>
void count_rows(Reader& reader, const std::vector<std::string>& columns, json& report) {
  std::vector<std::int64_t> filled(columns.size());
  std::int64_t rows = 0;
  try {
    for (; const auto row = reader.next(); ++rows)
      for (std::size_t i = 0; i < columns.size(); ++i) filled[i] += !std::holds_alternative<std::monostate>((*row)[i]);
  } catch (const Error& error) {
    report["problems"].push_back(error.what());
  }
  report["rows"] = rows;
  for (std::size_t i = 0; i < columns.size(); ++i) report["fields"][columns[i]] = filled[i];
}

// The table as training would read it; nothing when its columns do not make samples.
std::optional<Manifest> try_make_manifest(const SourceConfig& source) {
  try {
    return make_manifest(source, /*allow_pipes=*/false);
  } catch (const Error& error) {
    if (error.exit() != Exit::usage) throw;
    return std::nullopt;
  }
}

void survey_table(const stdfs::path& path, const InspectOptions& options, json& report) {
  SourceConfig source;
  source.type = SourceConfig::Type::parquet;
  source.path = {path.string()};
  const auto manifest = try_make_manifest(source);
  if (!manifest && options.grid) fail(Exit::usage, "--grid: {} has no column of images", path.string());
  if (!manifest) return;
  SampleSurvey samples(options);
  const auto rows = make_source(source, *manifest, /*resolution=*/0)->open({0, 0, 1}, 0);
  while (const auto row = rows->next()) {
    if (const auto* rejected = std::get_if<Rejected>(&*row)) {
      samples.reject(rejected->ref.id, rejected->reason, rejected->detail);
    } else if (const auto* sample = std::get_if<RawSample>(&*row)) {
      samples.add_caption(sample->caption);
      samples.add_image(sample->ref.id, sample->image);
    }
  }
  samples.finish(report, path);
}

}  // namespace

json inspect_archive(const stdfs::path& path, const InspectOptions& options) {
  json report = {{"kind", "archive"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  std::map<std::string, std::int64_t> fields;
  std::int64_t rows = 0;
  SampleSurvey samples(options);
  TarReader reader(path.string());
  for (; const auto sample = reader.next(); ++rows) {
    for (const auto& [field, bytes] : sample->fields) ++fields[field];
    survey(*sample, samples);
  }
  if (reader.error()) report["problems"].push_back(reader.error()->message);
  if (const auto unread = reader.unread_bytes())
    report["problems"].push_back(fmt::format("{} bytes behind the end mark, which nothing reads", unread));
  report["rows"] = rows;
  report["fields"] = fields;
  samples.finish(report, path);
  return report;
}

json inspect_parquet(const stdfs::path& path, const InspectOptions& options) {
  json report = {{"kind", "parquet"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  ParquetReader reader(path, {}, ParquetLists::floats);  // long lists of numbers would take ages to print
  std::vector<std::string> columns;
  for (const auto& column : reader.schema()) {
    columns.push_back(column.name);
    report["types"][column.name] = column.type;
  }
  count_rows(reader, columns, report);
  survey_table(path, options, report);
  return report;
}

json inspect_list(const stdfs::path& path) {
  json report = {{"kind", "list"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  ListReader reader(path);
  count_rows(reader, reader.schema(), report);
  if (const auto damaged = reader.damaged_rows())
    report["problems"].push_back(
        fmt::format("{} damaged rows: too few or too many fields, or no JSON object", damaged));
  return report;
}

}  // namespace millrace
