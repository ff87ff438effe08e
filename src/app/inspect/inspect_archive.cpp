// Archives, tables and lists: fields and rows, and of those with images what training would find in them.
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

// All rows of a file, of `type` where the settings do not say that it holds classes.
SourceConfig source_of_file(const stdfs::path& path, SourceConfig::Type type, const InspectOptions& options) {
  SourceConfig source = options.source;
  if (source.type != SourceConfig::Type::class_labels) source.type = type;
  source.path = {path.string()};
  source.filters.clear();
  source.limit.reset();
  return source;
}

void survey_samples(const SourceConfig& source, const Manifest& manifest, const InspectOptions& options, json& report) {
  SampleSurvey samples(options);
  const auto archives = make_source(source, manifest, /*resolution=*/0);
  const auto rows = archives->open({0, 0, 1}, 0);
  while (const auto row = rows->next()) {
    if (const auto* rejected = std::get_if<Rejected>(&*row)) {
      samples.reject(rejected->ref.id, rejected->reason, rejected->detail);
    } else if (const auto* sample = std::get_if<RawSample>(&*row)) {
      for (const auto& caption : sample->more_captions) samples.add_caption(caption);
      if (source.needs_captions) samples.add_caption(sample->caption);
      if (sample->image_uri.empty()) samples.add_image(sample->ref.id, sample->image);  // else it is not here
    }
  }
  samples.finish(report, source.path.front());
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

// The table as training would read it; nothing when its columns do not make samples, and nobody said which do.
std::optional<Manifest> try_make_manifest(const SourceConfig& source) {
  const SourceColumns& columns = source.columns;
  const bool is_asked_for = columns.image || columns.caption || columns.key || columns.cls;
  try {
    return make_manifest(source, /*allow_pipes=*/false);
  } catch (const Error& error) {
    if (error.exit() != Exit::usage || is_asked_for) throw;
    return std::nullopt;
  }
}

void survey_table(const stdfs::path& path, const InspectOptions& options, json& report) {
  const SourceConfig source = source_of_file(path, SourceConfig::Type::parquet, options);
  const auto manifest = try_make_manifest(source);
  if (!manifest && options.grid) fail(Exit::usage, "--grid: {} has no column of images", path.string());
  if (manifest) survey_samples(source, *manifest, options, report);
}

// `rows`: those that can be read.
void survey_archive(const stdfs::path& path, const InspectOptions& options, std::uint64_t rows, json& report) {
  SourceConfig source = source_of_file(path, SourceConfig::Type::webdataset, options);
  const json& fields = report["fields"];
  // Its images can be told of without the texts of its classes.
  if (source.type == SourceConfig::Type::webdataset && !source.columns.caption && fields.contains("cls") &&
      !fields.contains("txt"))
    source.needs_captions = false;
  Manifest manifest = make_manifest(source, /*allow_pipes=*/false);
  manifest.archives.front().limit = rows;
  survey_samples(source, manifest, options, report);
}

}  // namespace

json inspect_archive(const stdfs::path& path, const InspectOptions& options) {
  json report = {{"kind", "archive"}, {"bytes", stdfs::file_size(path)}, {"problems", json::array()}};
  std::map<std::string, std::int64_t> fields;
  std::uint64_t rows = 0;
  TarOptions names_only;
  names_only.fields = {"."};  // no field is called that
  TarReader reader(path.string(), names_only);
  for (; const auto sample = reader.next(); ++rows)
    for (const auto& [field, bytes] : sample->fields) ++fields[field];
  if (reader.error()) report["problems"].push_back(reader.error()->message);
  if (const auto unread = reader.unread_bytes())
    report["problems"].push_back(fmt::format("{} bytes behind the end mark, which nothing reads", unread));
  report["rows"] = rows;
  report["fields"] = fields;
  survey_archive(path, options, rows, report);
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
