#include "sample_columns.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "millrace/core/error.h"
#include "millrace/io/archive_name.h"

namespace millrace {

namespace {

class Chooser {
 public:
  Chooser(const std::vector<TableColumn>& table, const std::string& section, const std::string& path)
      : table_(table), section_(section), path_(path) {}

  const TableColumn* find(const std::string& name) const {
    const auto found =
        std::find_if(table_.begin(), table_.end(), [&](const TableColumn& column) { return column.name == name; });
    return found == table_.end() ? nullptr : &*found;
  }

  // `key` names the configuration's key, `wanted` its value.
  const TableColumn& choose(const char* key, const std::optional<std::string>& wanted,
                            const std::vector<std::string>& usual) const {
    if (wanted) {
      if (const TableColumn* const column = find(*wanted)) return *column;
      fail(fmt::format("{}.columns.{} = {}: {} has no such column", section_, key, *wanted, path_), key);
    }
    for (const auto& name : usual) {
      if (const TableColumn* const column = find(name)) return *column;
    }
    fail(fmt::format("{} has no column of the usual names ({}) for {}.columns.{}", path_, fmt::join(usual, ", "),
                     section_, key),
         key);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& key) const {
    std::vector<std::string> names;
    for (const TableColumn& column : table_) names.push_back(column.name);
    throw ColumnError(what,
                      fmt::format("set {}.columns.{} to one of: {}{}", section_, key, fmt::join(names, ", "),
                                  key == "image" ? hint_of_addresses() : ""),
                      key);
  }

 private:
  // A list of addresses that `download` has not fetched yet, or what img2dataset writes beside its archives.
  std::string hint_of_addresses() const {
    for (const char* name : {"url", "URL"})
      if (find(name))
        return fmt::format(
            "; {1} holds addresses: `millrace download` makes archives of them, while {0}.columns.image={1} "
            "fetches each one at every visit, for a try-out",
            section_, name);
    return "";
  }

  const std::vector<TableColumn>& table_;
  const std::string &section_, &path_;
};

// The name of a column of texts, or of lists of texts.
std::string choose_caption(const Chooser& chooser, const std::optional<std::string>& wanted, const std::string& path) {
  const TableColumn& column = chooser.choose("caption", wanted, {"caption", "TEXT", "text", "txt"});
  if (column.holds == ColumnHolds::nested)
    chooser.fail(fmt::format("{}: column {} holds several values a row that are no texts", path, column.name),
                 "caption");
  return column.name;
}

// In a list called metadata, as `datasets` reads beside a folder's images, file_name is the image, and an address where
// it came from.
std::vector<std::string> names_of_images(const std::string& path) {
  std::vector<std::string> names{"jpg",  "jpeg", "png", "webp", "image",    "image_path",
                                 "path", "file", "url", "URL",  "file_name"};
  if (std::filesystem::path(path).filename().string().starts_with("metadata."))
    std::rotate(std::ranges::find(names, "url"), names.end() - 1, names.end());
  return names;
}

}  // namespace

SampleColumns choose_columns(const std::vector<TableColumn>& table, const SourceConfig& config,
                             const std::string& path) {
  const Chooser chooser(table, config.section, path);
  const SourceColumns& wanted = config.columns;
  const TableColumn& image = chooser.choose("image", wanted.image, names_of_images(path));
  const bool has_none = image.holds == ColumnHolds::nothing;
  if (image.holds != ColumnHolds::bytes && image.holds != ColumnHolds::text && !has_none)
    chooser.fail(fmt::format("{}: column {} holds neither bytes nor text", path, image.name), "image");
  // A table of metadata beside archives has addresses, too: nobody asked to fetch those.
  if (is_kind(path, ArchiveKind::parquet) && !wanted.image && image.holds != ColumnHolds::bytes && !has_none)
    chooser.fail(fmt::format("{}: no column with the bytes of images, and {} holds text", path, image.name), "image");
  SampleColumns columns;
  columns.image_is_place = image.holds == ColumnHolds::text;
  columns.image_is_struct = image.is_struct;
  columns.names = {image.name};
  if (!config.needs_captions) {
    // images are all that is used
  } else if (config.type == SourceConfig::Type::class_labels) {
    const TableColumn& cls = chooser.choose("cls", wanted.cls, {"cls", "label"});
    if (cls.holds == ColumnHolds::nested || cls.holds == ColumnHolds::texts)
      chooser.fail(fmt::format("{}: column {} holds several values a row, and a sample has one class", path, cls.name),
                   "cls");
    columns.names.push_back(cls.name);
  } else if (wanted.caption) {
    for (const std::string& name : wanted.caption->values) columns.names.push_back(choose_caption(chooser, name, path));
  } else {
    columns.names.push_back(choose_caption(chooser, {}, path));
  }
  columns.captions = columns.names.size() - SampleColumns::caption;
  columns.has_key = wanted.key.has_value();
  if (wanted.key) columns.names.push_back(chooser.choose("key", wanted.key, {}).name);
  for (const auto& [field, condition] : config.filters)
    (chooser.find(field) ? columns.names : columns.not_there).push_back(field);
  return columns;
}

}  // namespace millrace
