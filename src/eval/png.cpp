#include "millrace/eval/png.h"

#include <png.h>

#include <algorithm>
#include <cmath>

#include "millrace/core/error.h"
#include "millrace/core/files.h"

namespace millrace {

std::string encode_png(const Image& image) {
  ensure(image.width > 0 && image.height > 0 && image.pixels.size() == std::size_t{3} * image.width * image.height,
         "an image with all its pixels");
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = PNG_FORMAT_RGB;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = bytes.size();
  const int stride = 0;  // rows without padding
  if (!png_image_write_to_memory(&header, bytes.data(), &size, /*convert_to_8_bit=*/0, image.pixels.data(), stride,
                                 /*colormap=*/nullptr))
    fail(Exit::io, "libpng: {}", header.message);
  bytes.resize(size);
  return bytes;
}

void write_png(const std::filesystem::path& path, const Image& image) {
  write_file_atomically(path, encode_png(image));
}

Image make_grid(std::span<const Image> images, int columns) {
  ensure(!images.empty(), "a grid of no images");
  constexpr int gap = 2;
  const int count = static_cast<int>(images.size());
  if (columns <= 0) columns = static_cast<int>(std::ceil(std::sqrt(count)));
  columns = std::min(columns, count);
  const int rows = (count + columns - 1) / columns;
  int cell_width = 0, cell_height = 0;
  for (const Image& image : images) {
    cell_width = std::max(cell_width, image.width);
    cell_height = std::max(cell_height, image.height);
  }
  Image grid;
  grid.width = columns * (cell_width + gap) - gap;
  grid.height = rows * (cell_height + gap) - gap;
  grid.pixels.assign(std::size_t{3} * grid.width * grid.height, 0);
  for (int i = 0; i < count; ++i) {
    const int left = i % columns * (cell_width + gap), top = i / columns * (cell_height + gap);
    const std::size_t row_bytes = std::size_t{3} * images[i].width;
    for (int y = 0; y < images[i].height; ++y)
      std::copy_n(images[i].pixels.begin() + static_cast<std::ptrdiff_t>(y * row_bytes), row_bytes,
                  grid.pixels.begin() + 3 * (std::ptrdiff_t{top + y} * grid.width + left));
  }
  return grid;
}

}  // namespace millrace
