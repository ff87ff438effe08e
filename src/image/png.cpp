#include "millrace/image/png.h"

#include <png.h>

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

void write_png(const std::filesystem::path& path, const Image& image, const PngText& text) {
  write_file_atomically(path, with_png_text(encode_png(image), text));
}

}  // namespace millrace
