#include "folder.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"
#include "url_lists.h"

namespace millrace {

namespace {

constexpr const char* settings_name = "download.yaml";

// JSON, but not called so: img2dataset takes every file *.json of such a folder for a shard's statistics. Folders of
// before have it under its older name.
fs::path lists_file(const fs::path& out) {
  const auto older = out / "lists.json";
  return fs::exists(older) ? older : out / "download.lists";
}

bool holds_archives(const fs::path& out) {
  if (!fs::is_directory(out)) return false;
  const fs::directory_iterator files(out);
  return std::any_of(begin(files), end(files),
                     [](const auto& entry) { return entry.path().string().ends_with("_stats.json"); });
}

// What may not change while a folder is filled: it decides which row is in which archive, and how it is stored.
bool is_fixed(const std::string& key) {
  static constexpr std::string_view keys[] = {"download.urls",    "download.columns",   "download.format",
                                              "download.limit",   "download.resize",    "download.rows_per_file",
                                              "download.quality", "download.image_size"};
  return std::any_of(std::begin(keys), std::end(keys),
                     [&](std::string_view fixed) { return config::is_in(key, fixed); });
}

void check_settings(const DownloadConfig& config) {
  const fs::path out = config.out.value;
  const bool knows_lists = fs::exists(lists_file(out));  // which check_lists compares file by file
  for (const config::Change& change : config::diff(read_file(out / settings_name), DownloadFile{config})) {
    if (!is_fixed(change.key) || (knows_lists && config::is_in(change.key, "download.urls"))) continue;
    throw Error(Exit::usage,
                fmt::format("{} holds archives made with {} = {}, not {}", out.string(), change.key, change.before,
                            change.after),
                "choose another download.out, or the same settings");
  }
}

// A list as it is kept.
struct KnownList {
  std::string path;
  std::uint64_t bytes;
};

std::vector<KnownList> present_lists(const DownloadConfig& config) {
  std::vector<KnownList> lists;
  for (const fs::path& path : expand_lists(config.urls))
    lists.push_back({valid_utf8(path.string()), fs::file_size(path)});
  return lists;
}

// None in folders from before lists were kept.
std::vector<KnownList> read_known_lists(const fs::path& path) {
  std::vector<KnownList> lists;
  if (!fs::exists(path)) return lists;
  const nlohmann::json json = read_json(path);
  try {
    for (const nlohmann::json& list : json.at("lists")) lists.push_back({list.at("path"), list.at("bytes")});
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: {}", path.string(), error.what());
  }
  return lists;
}

void write_known_lists(const fs::path& path, const std::vector<KnownList>& lists, const ListTypes& types) {
  nlohmann::json json = nlohmann::json::array();
  for (const KnownList& list : lists) json.push_back({{"path", list.path}, {"bytes", list.bytes}});
  write_file_atomically(path, format_json({{"lists", std::move(json)}, {"types", types_to_json(types)}}));
}

// The first of the lists `before` that is not as it was; empty when at most new ones have come behind them.
std::string first_difference(const std::vector<KnownList>& before, const std::vector<KnownList>& now) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (i == now.size()) return before[i].path + " is missing";
    if (now[i].path != before[i].path) return fmt::format("{} stands where {} stood", now[i].path, before[i].path);
    if (now[i].bytes != before[i].bytes)
      return fmt::format("{} has {} bytes, not {}", now[i].path, now[i].bytes, before[i].bytes);
  }
  return {};
}

// Shards are numbered over the lists in their order.
void check_lists(const DownloadConfig& config) {
  const fs::path out = config.out.value;
  const std::string difference = first_difference(read_known_lists(lists_file(out)), present_lists(config));
  if (difference.empty()) return;
  throw Error(
      Exit::usage, fmt::format("{} holds archives of other lists: {}", out.string(), difference),
      fmt::format("choose another download.out, or the lists of before; new ones may only come behind them. Where "
                  "the same lists were only moved, write their new paths into {} there",
                  lists_file(out).filename().string()));
}

// An archive may have the name of a list: 00000.parquet.
void refuse_folder_of_lists(const DownloadConfig& config) {
  for (const fs::path& list : expand_lists(config.urls)) {
    std::error_code unknown;  // there is no such folder yet
    if (!fs::equivalent(fs::absolute(list).parent_path(), config.out.value, unknown)) continue;
    throw Error(Exit::usage, fmt::format("download.out: the list {} lies in this folder", list.string()),
                "choose another folder: archives could overwrite lists");
  }
}

// What killed runs were writing.
void remove_leftovers(const fs::path& out) {
  std::error_code ignored;
  for (const auto& file : list_folder(out, ignored))
    if (is_abandoned(file)) fs::remove(file.path(), ignored);
}

}  // namespace

void check_folder(const DownloadConfig& config) {
  const fs::path out = config.out.value;
  if (!holds_archives(out)) return refuse_folder_of_lists(config);
  if (!fs::exists(out / settings_name)) {
    throw Error(Exit::usage,
                fmt::format("{} holds archives of another program: it has no {}", out.string(), settings_name),
                "choose another download.out");
  }
  check_settings(config);
  check_lists(config);
}

ListTypes known_types(const DownloadConfig& config) {
  const fs::path out = config.out.value, path = lists_file(out);
  // Without archives nobody has compared the lists with those that it tells of.
  if (!holds_archives(out) || !fs::exists(path)) return {};
  const nlohmann::json json = read_json(path);
  return json.contains("types") ? types_from_json(json["types"], path.string()) : ListTypes();
}

void open_folder(const DownloadConfig& config, const ListTypes& types) {
  const fs::path out = config.out.value;
  make_directories(out);
  remove_leftovers(out);
  write_known_lists(lists_file(out), present_lists(config), types);
  write_file_atomically(out / settings_name, config::dump_yaml(DownloadFile{config}));
}

}  // namespace millrace
