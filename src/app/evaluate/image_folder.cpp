#include "evaluate/image_folder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"

namespace millrace {

// Hidden files are other programs' own: macOS puts ._NAME.png beside NAME.png.
static bool is_image(const fs::path& file) {
  static constexpr std::array extensions = {".png", ".jpg", ".jpeg", ".webp"};
  if (file.filename().string().front() == '.') return false;
  return std::ranges::find(extensions, lower(file.extension().string())) != extensions.end();
}

// The overview that `millrace generate` puts beside its pictures.
static bool is_own_grid(const fs::path& file) {
  std::error_code error;
  return file.filename() == "grid.png" && fs::exists(file.parent_path() / "images.jsonl", error);
}

std::vector<fs::path> list_images(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : list_folder(folder, error))
    if (is_image(entry.path()) && !is_own_grid(entry.path()) && entry.is_regular_file()) files.push_back(entry.path());
  if (error) fail(Exit::io, "{}: {}", folder.string(), error.message());
  if (files.empty()) fail(Exit::io, "{} holds no images (png, jpg, jpeg, webp)", folder.string());
  std::ranges::sort(files, {}, [](const fs::path& file) { return file.filename().string(); });
  return files;
}

std::optional<fs::path> find_late_number(std::span<const fs::path> files) {
  // Of equal numbers of digits the bytes' order is that of the numbers.
  const auto digits = [](const fs::path& file) {
    const auto stem = file.stem().string();
    const auto first = std::min(stem.find_first_not_of('0'), stem.size());
    return std::pair(stem.size() - first, stem.substr(first));
  };
  const auto is_number = [](const fs::path& file) {
    return std::ranges::all_of(file.stem().string(), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (!std::ranges::all_of(files, is_number)) return std::nullopt;
  const auto late = std::ranges::is_sorted_until(files, {}, digits);
  if (late == files.end()) return std::nullopt;
  return *late;
}

}  // namespace millrace
