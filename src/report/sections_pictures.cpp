#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/image/decode.h"
#include "millrace/image/resize_image.h"
#include "sections.h"

namespace millrace {
namespace {

constexpr std::size_t most_pictures = 6;
constexpr int widest_picture = 720;

std::optional<Image> thumbnail(const fs::path& file) try {
  auto decoded = decode_image(read_file(file));
  auto* image = std::get_if<Image>(&decoded);
  if (!image) return std::nullopt;
  if (image->width <= widest_picture) return std::move(*image);
  const auto height = static_cast<std::int64_t>(image->height) * widest_picture / image->width;
  return resize_image(*image, widest_picture, std::max(1, static_cast<int>(std::min<std::int64_t>(height, 4000))));
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

// The first, the last, and some evenly between.
Section pictures_section(Runs runs) {
  Section section{"Pictures", {}};
  const auto of_each = std::max<std::size_t>(1, most_pictures / runs.size());
  for (const auto& run : runs) {
    const auto count = std::min(of_each, run.pictures.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto last = run.pictures.size() - 1;
      const auto& picture = run.pictures[count == 1 ? last : last * i / (count - 1)];
      if (auto image = thumbnail(picture.file))
        section.blocks.emplace_back(Picture{fmt::format("{}, step {}", run.name, picture.step), std::move(*image)});
    }
  }
  return section;
}

}  // namespace millrace
