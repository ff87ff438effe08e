#include "millrace/latents/latent_cache.h"

#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <span>

#include "cache_files.h"
#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/process_name.h"
#include "millrace/io/hdf5.h"
#include "millrace/io/json.h"

namespace millrace {

using nlohmann::json;

namespace {

constexpr std::string_view null_text_stem = "null_caption";
constexpr std::int64_t max_values = 1 << 28;  // of one sample

std::vector<std::int64_t> read_shape(const json& shape, std::size_t rank, const fs::path& path) {
  auto sides = shape.get<std::vector<std::int64_t>>();
  std::int64_t values = 1;
  for (const auto side : sides)
    if (side < 1 || __builtin_mul_overflow(values, side, &values) || values > max_values)
      fail(Exit::io, "{}: impossible shape {}", path.string(), shape.dump());
  if (sides.size() != rank) fail(Exit::io, "{}: impossible shape {}", path.string(), shape.dump());
  return sides;
}

}  // namespace

bool is_latent_cache(const fs::path& folder) {
  return is_file(folder / description_name);
}

// `entry`: what CACHE.json says of it.
static std::vector<std::uint16_t> read_null_text(const fs::path& folder, const json& entry,
                                                 const std::vector<std::int64_t>& shape) {
  const std::string name = entry.at("file");
  if (!name.starts_with(null_text_stem) || name.find('/') != name.npos)
    fail(Exit::io, "{}: null_caption lies in {}, which is no file of a cache", (folder / description_name).string(),
         name);
  const fs::path path = folder / name;
  if (entry.at("xxh3_128") != hash_file(path).hex())
    fail(Exit::io, "{}: its digest is not the one in {}", path.string(), description_name);
  const Hdf5Reader file(path);
  const auto rows = static_cast<std::uint64_t>(shape[0]);
  if (file.expect("text", DType::f16, {shape[1]}) != rows)
    fail(Exit::io, "{}: not of the shape in {}", path.string(), description_name);
  std::vector<std::uint16_t> text(count_of(shape));
  file.read("text", 0, rows, std::as_writable_bytes(std::span(text)));
  return text;
}

// Returns its entry in CACHE.json. The name has the digest: another job that begins the same cache at the same time may
// have got other bits from another GPU, and CACHE.json is the first one's.
static json write_null_text(const fs::path& folder, const CacheDescription& description) {
  const fs::path temporary = temporary_name((folder / null_text_stem).string());
  Hdf5Writer file(temporary);
  file.create("text", DType::f16, {description.shape.text[1]});
  file.append("text", std::as_bytes(std::span(description.null_text)));
  file.close();
  const auto digest = hash_file(temporary).hex();
  const auto name = fmt::format("{}-{}.h5", null_text_stem, digest.substr(0, 8));
  publish_file(temporary, folder / name);
  return {{"file", name}, {"xxh3_128", digest}};
}

CacheDescription read_cache_description(const fs::path& folder) {
  const fs::path path = folder / description_name;
  try {
    const json document = read_json(path);
    check_cache_format(document, path);
    CacheDescription description;
    description.fingerprint = document.at("fingerprint");
    description.shape.moments = read_shape(document.at("moments"), 3, path);
    if (document.contains("tokens")) {
      description.shape.text = read_shape(document.at("tokens"), 1, path);
      return description;
    }
    description.shape.text = read_shape(document.at("text"), 2, path);
    description.null_text = read_null_text(folder, document.at("null_caption"), description.shape.text);
    return description;
  } catch (const json::exception& error) {
    fail(Exit::io, "{}: {}", path.string(), error.what());
  }
}

void write_cache_description(const fs::path& folder, const CacheDescription& description) {
  if (is_latent_cache(folder)) return;
  make_directories(folder);
  const auto& shape = description.shape;
  json document = {{"format", 1},
                   {"fingerprint", description.fingerprint},
                   {"moments", shape.moments},
                   {shape.text_name(), shape.text}};
  if (!shape.has_tokens()) document["null_caption"] = write_null_text(folder, description);
  write_file_if_absent(folder / description_name, format_json(document));  // the first of two jobs that begin at once
}

fs::path latent_folder(const fs::path& cache, const std::string& archive) {
  constexpr std::size_t longest = 80;
  std::string name = archive.substr(0, longest);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && !std::strchr("._-", c)) c = '_';
  if (name != archive || name.starts_with('.')) name = fmt::format("_{}-{:016x}", name, hash64(archive));
  return cache / "rows" / name;
}

fs::path latent_scratch(const fs::path& cache) {
  return cache / "tmp";
}

void clear_latent_scratch(const fs::path& cache) {
  std::error_code ignored;
  for (const auto& file : list_folder(cache, ignored))
    if (is_abandoned(file)) fs::remove(file.path(), ignored);
  for (const auto& file : list_folder(latent_scratch(cache), ignored)) {
    const auto name = file.path().stem().string();
    if (is_abandoned_by(name.substr(name.find('-') + 1), file)) fs::remove(file.path(), ignored);
  }
}

}  // namespace millrace
