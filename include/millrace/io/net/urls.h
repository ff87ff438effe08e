#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Which files of a directory are archives of a data set. `one_kind`: the tars, where there are none the lists, else the
// Parquet files, which img2dataset writes beside tars, too, with the metadata of each.
enum class Archives { tar, parquet, list, one_kind };

// How the images that lie in a directory, or in folders of it, become an archive; empty where there are none.
std::string how_to_pack_images(const std::filesystem::path& directory);

// The archives that `patterns` name, in their order: each pattern is split at `::` (but for that of an IPv6 address in
// brackets), gets `${NAME}` from the environment variable WDS_NAME and its braces expanded (webdataset's rules); a
// directory, or s3://BUCKET/FOLDER/ with the slash at its end, becomes the sorted archives in it. Error(io) names every
// file that is missing, Error(usage) a pattern with unbalanced braces or an unset variable.
std::vector<std::string> expand_urls(const std::vector<std::string>& patterns, Archives archives);

// Brace expansion as Python's `braceexpand` does it: {a,b}, {1..9..2}, {08..12}, {a..e}, nesting, backslash escapes.
std::vector<std::string> expand_braces(std::string_view pattern);

// The path behind a plain path or a `file:` URL; empty for everything else (pipe:, http:, s3:, -).
std::string local_path(std::string_view url);
// "s3://...", or of any other scheme: where a folder is wanted it would become one of that name, here.
bool is_url(std::string_view path);
bool is_pipe(std::string_view url);
bool is_http(std::string_view url);  // https too
bool is_s3(std::string_view url);

}  // namespace millrace
