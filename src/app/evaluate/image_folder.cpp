#include "evaluate/image_folder.h"

#include <algorithm>
#include <array>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "millrace/image/decode.h"

namespace millrace {

static bool is_image(const fs::path& file) {
  static constexpr std::array extensions = {".png", ".jpg", ".jpeg", ".webp"};
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
  for (fs::directory_iterator entries(folder, error), end; !error && entries != end; entries.increment(error))
    if (is_image(entries->path()) && !is_own_grid(entries->path()) && entries->is_regular_file())
      files.push_back(entries->path());
  if (error) fail(Exit::io, "{}: {}", folder.string(), error.message());
  if (files.empty()) fail(Exit::io, "{} holds no images (png, jpg, jpeg, webp)", folder.string());
  std::ranges::sort(files, {}, [](const fs::path& file) { return file.filename().string(); });
  return files;
}

Image read_image(const fs::path& file) {
  auto image = decode_image(read_file(file));
  if (const auto* failure = std::get_if<DecodeFailure>(&image))
    fail(Exit::io, "{}: {}", file.string(), failure->detail);
  return std::get<Image>(std::move(image));
}

}  // namespace millrace
