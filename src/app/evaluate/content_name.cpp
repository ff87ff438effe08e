#include "evaluate/content_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <vector>

#include "evaluate/image_folder.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/storage_error.h"

namespace millrace {
namespace {

constexpr std::uintmax_t hashed_end_bytes = std::uintmax_t{128} << 20;  // CLIP's weights are 1.7 GB

std::uintmax_t size_of_file(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error) fail(Exit::io, "{}: {}", file.string(), error.message());
  return size;
}

void add_range(Hasher128& hasher, const fs::path& file, std::uintmax_t begin, std::uintmax_t end) {
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(begin));
  std::string piece(std::size_t{1} << 20, '\0');
  while (begin < end) {
    const auto bytes = std::min<std::uintmax_t>(piece.size(), end - begin);
    if (!in.read(piece.data(), static_cast<std::streamsize>(bytes))) fail_errno("cannot read", file);
    hasher.update(piece.data(), static_cast<std::size_t>(bytes));
    begin += bytes;
  }
}

void add_content(Hasher128& hasher, const fs::path& file) {
  const auto size = size_of_file(file);
  const auto text = std::to_string(size) + "\n";
  hasher.update(text.data(), text.size());
  if (size <= 2 * hashed_end_bytes) return add_range(hasher, file, 0, size);
  add_range(hasher, file, 0, hashed_end_bytes);
  add_range(hasher, file, size - hashed_end_bytes, size);
}

std::string last_name(const fs::path& path) {
  return normal_path(path).filename().string();
}

std::string name_with_digest(const fs::path& path, const Hasher128& hasher) {
  return fmt::format("{} (xxh3 {:016x})", last_name(path), hasher.digest().low);
}

}  // namespace

std::string content_name_of_file(const fs::path& file) {
  Hasher128 hasher;
  add_content(hasher, file);
  return name_with_digest(file, hasher);
}

std::string content_name_of_images(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  const auto images = list_images(folder);
  for (const auto& image : images) bytes += size_of_file(image);
  return fmt::format("{} ({} images, {} bytes)", last_name(folder), images.size(), bytes);
}

std::string content_name_of_network(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : list_folder(folder, error))
    for (const char* kind : {".safetensors", ".json", ".txt"})
      if (entry.path().extension() == kind && entry.is_regular_file()) files.push_back(entry.path());
  if (error) fail(Exit::io, "{}: {}", folder.string(), error.message());
  std::ranges::sort(files);
  Hasher128 hasher;
  for (const auto& file : files) {
    const auto name = file.filename().string() + "\n";
    hasher.update(name.data(), name.size());
    add_content(hasher, file);
  }
  return name_with_digest(folder, hasher);
}

}  // namespace millrace
