#include "millrace/io/net/urls.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <regex>
#include <set>
#include <utility>

#include "millrace/core/files.h"
#include "millrace/core/parallel_for.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/io/archive_name.h"
#include "net/s3.h"

namespace millrace {

namespace {

constexpr std::array<std::string_view, 4> image_suffixes = {".jpg", ".jpeg", ".png", ".webp"};

bool ends_with_any(const std::string& name, std::span<const std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](std::string_view suffix) { return name.ends_with(suffix); });
}

std::string stem_of(const std::string& name) {
  return name.substr(0, name.find('.'));
}

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check_storage(error, path);
  return status;
}

struct Files {
  std::vector<std::string> names;
  std::set<std::string> lead_nowhere;  // of these the links to nothing, which are missed if they are chosen
};

// The directory itself tells what most entries are; only links have to be looked at.
Files files_in(const fs::path& directory) {
  Files files;
  try {
    for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
      const bool regular = entry.is_regular_file();
      if (!regular && entry.exists()) continue;
      files.names.push_back(entry.path().filename().string());
      if (!regular) files.lead_nowhere.insert(files.names.back());
    }
  } catch (const fs::filesystem_error& error) {
    check_storage(error.code(), directory);
    throw;
  }
  return files;
}

// What hints speak of: whatever cannot be looked at is not there for them.
struct Contents {
  bool has_images = false;
  std::set<fs::path> folders{};
};

Contents contents_of(const fs::path& directory) {
  Contents contents;
  std::error_code error, ignored;
  for (const auto& entry : list_folder(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.')) continue;
    if (entry.is_directory(ignored)) {
      contents.folders.insert(entry.path());
    } else if (ends_with_any(lower(name), image_suffixes)) {
      contents.has_images = true;
    }
  }
  return contents;
}

// What a directory of a data set holds in place of archives of one kind. img2dataset writes NAME.parquet beside the
// folder NAME of images, too: that is no table of images.
std::string what_is_there(const std::string& directory, const std::set<std::string>& tars,
                          const std::set<std::string>& tables, const std::set<std::string>& lists) {
  const fs::path path = local_path(directory);
  const auto folders = path.empty() ? std::set<fs::path>() : contents_of(path).folders;
  std::string there;
  const auto name_one = [&](const std::string& name, const char* type) {
    there += fmt::format("; {} there is for type {}", name, type);
  };
  if (!tars.empty()) name_one(*tars.begin(), "webdataset");
  const auto table =
      std::ranges::find_if(tables, [&](const std::string& name) { return !folders.contains(path / stem_of(name)); });
  if (table != tables.end()) name_one(*table, "parquet");
  if (!lists.empty()) name_one(*lists.begin(), "csv");
  if (path.empty()) return there;
  const std::string how = how_to_pack_images(path);
  if (!how.empty()) there += fmt::format("; {}, for type webdataset", how);
  if (!folders.empty()) there += "; folders below are not searched";
  return there;
}

// The archives among the files of a directory, sorted by bytes. Hidden ones are something else: macOS writes ._NAME
// beside NAME.
std::vector<std::string> choose_archives(const std::vector<std::string>& names, Archives archives,
                                         const std::string& directory) {
  std::set<std::string> tars, tables, lists;
  for (const std::string& name : names) {
    const auto archive = try_archive_name(name);
    if (name.starts_with('.') || !archive) continue;
    auto& of_its_kind = archive->kind == ArchiveKind::tar ? tars : archive->kind == ArchiveKind::list ? lists : tables;
    of_its_kind.insert(name);
  }
  std::set<std::string> chosen;
  if (archives == Archives::list) chosen = lists;
  if (archives == Archives::parquet) chosen = tables;
  if (archives == Archives::tar) chosen = tars;
  if (archives == Archives::one_kind) chosen = !tars.empty() ? tars : !lists.empty() ? lists : tables;
  if (chosen.empty()) {
    const char* const expected = archives == Archives::list      ? "expected *.csv, *.tsv or *.jsonl, plain or .gz"
                                 : archives == Archives::parquet ? "expected *.parquet"
                                 : archives == Archives::one_kind
                                     ? "expected tars, lists or Parquet files"
                                     : "expected *.tar, *.tar.gz, *.tar.bz2, *.tar.xz or *.tar.zst; a latent cache "
                                       "is read with data.train.type=latents";
    throw Error(Exit::io, fmt::format("no archives in the directory {}", directory),
                expected + what_is_there(directory, tars, tables, lists));
  }
  return {chosen.begin(), chosen.end()};
}

// Whether `text` ends inside the brackets of a host: http://[fe80
bool ends_in_host_brackets(std::string_view text) {
  const auto scheme = text.rfind("://");
  if (scheme == std::string_view::npos) return false;
  const std::string_view host = text.substr(scheme + 3);
  const auto bracket = host.find_last_of("[]");
  return bracket != host.npos && host[bracket] == '[' && host.find('/') == host.npos;
}

std::vector<std::string> split_at_double_colons(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    auto end = text.find("::");
    while (end != text.npos && ends_in_host_brackets(text.substr(0, end))) end = text.find("::", end + 2);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 2);
  }
}

std::string substitute_once(const std::string& text) {
  static const std::regex variable(R"(\$\{(\w+)\})");
  std::string result;
  auto rest = text.begin();
  for (std::sregex_iterator match(text.begin(), text.end(), variable), end; match != end; ++match) {
    const std::string name = "WDS_" + (*match)[1].str();
    const char* const value = std::getenv(name.c_str());
    if (!value) fail(Exit::usage, "'{}' needs the environment variable {}", text, name);
    result.append(rest, (*match)[0].first).append(value);
    rest = (*match)[0].second;
  }
  return result.append(rest, text.end());
}

// A value may hold variables itself; ten rounds, as webdataset does it, end a circle.
std::string substitute_variables(std::string text) {
  for (int round = 0; round < 10; ++round) {
    std::string next = substitute_once(text);
    if (next == text) break;
    text = std::move(next);
  }
  return text;
}

// "http:", "pipe:", "s3:"...: at least two letters, so that no one-letter name before a colon is taken for one.
bool has_scheme(std::string_view url) {
  const auto colon = url.find(':');
  if (colon == std::string_view::npos || colon < 2) return false;
  return std::all_of(url.begin(), url.begin() + static_cast<std::ptrdiff_t>(colon),
                     [](unsigned char c) { return std::isalnum(c) || c == '+'; });
}

void refuse_missing(std::vector<std::string> missing) {
  if (missing.empty()) return;
  constexpr std::size_t shown = 5;
  const auto more = missing.size() > shown ? fmt::format(" and {} more", missing.size() - shown) : "";
  missing.resize(std::min(missing.size(), shown));
  throw Error(Exit::io,
              fmt::format("missing {}: {}{}", missing.size() == 1 ? "file" : "files", fmt::join(missing, ", "), more),
              "check the path and the range in braces; with leading zeros it makes names of one length, so names of 5 "
              "and of 6 digits take two ranges, or their folder; wildcards are not expanded, a folder is read whole");
}

struct Found {
  std::vector<std::string> archives;
  std::vector<std::string> missing;  // paths
};

// `url` itself, or the archives in the directory it stands for. A data set may have hundreds of thousands, and each
// look at one is a request to a file server: so there is one for each name, and none for the files of a directory.
Found look_behind(const std::string& url, Archives archives) {
  Found found;
  const fs::path path = local_path(url);
  if (path.empty()) {
    if (!is_s3(url) || !url.ends_with('/')) return {{url}, {}};
    for (const std::string& name : choose_archives(list_s3_folder(url), archives, url))
      found.archives.push_back(url + name);
    return found;
  }
  const fs::file_status status = status_of(path);
  if (!fs::exists(status)) return {{}, {path.string()}};
  if (!fs::is_directory(status)) return {{url}, {}};
  const Files files = files_in(path);
  for (const std::string& name : choose_archives(files.names, archives, url))
    (files.lead_nowhere.contains(name) ? found.missing : found.archives).push_back((path / name).string());
  return found;
}

}  // namespace

std::string local_path(std::string_view url) {
  if (url.starts_with("file://")) return std::string(url.substr(7));
  if (url.starts_with("file:")) return std::string(url.substr(5));
  return url == "-" || has_scheme(url) ? std::string() : std::string(url);
}

bool is_url(std::string_view path) {
  return path.find("://") != path.npos;
}

bool is_pipe(std::string_view url) {
  return url.starts_with("pipe:");
}

bool is_http(std::string_view url) {
  return url.starts_with("http://") || url.starts_with("https://");
}

bool is_s3(std::string_view url) {
  return url.starts_with("s3://");
}

std::string how_to_pack_images(const std::filesystem::path& directory) {
  const Contents contents = contents_of(directory);
  const auto& folders = contents.folders;
  if (!contents.has_images && (folders.empty() || !contents_of(*folders.begin()).has_images))  // it stands for all
    return "";
  return fmt::format(
      "it holds {}: `tar --sort=name -cf 00000.tar -C {} .` makes an archive of them, with NAME.txt as the caption of "
      "NAME.jpg",
      contents.has_images ? "images" : "folders of images", shell_word(directory.string()));
}

std::vector<std::string> expand_urls(const std::vector<std::string>& patterns, Archives archives) {
  std::vector<std::string> named;
  for (const std::string& pattern : patterns)
    for (const std::string& part : split_at_double_colons(pattern))
      std::ranges::move(expand_braces(substitute_variables(part)), std::back_inserter(named));
  std::erase(named, "");
  std::vector<Found> found(named.size());
  parallel_for(named.size(), [&](std::size_t i) { found[i] = look_behind(named[i], archives); });
  std::vector<std::string> urls, missing;
  for (Found& behind : found) {
    std::ranges::move(behind.archives, std::back_inserter(urls));
    std::ranges::move(behind.missing, std::back_inserter(missing));
  }
  refuse_missing(std::move(missing));
  return urls;
}

}  // namespace millrace
