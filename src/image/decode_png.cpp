#include <fmt/format.h>
#include <png.h>

#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <opencv2/imgproc.hpp>

#include "decode_formats.h"
#include "opencv.h"

namespace millrace {

namespace {

constexpr png_alloc_size_t max_chunk_bytes = 64 << 20;
// Chunks of which a file may have many, which libpng would inflate and keep, and which nothing here looks at.
constexpr png_byte texts_and_palettes[] = "tEXt\0zTXt\0iTXt\0sPLT";
constexpr int texts_and_palettes_count = 4;

// libpng reading from memory; jumps as in decode_jpeg.cpp, NOTE [Jumps].
class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : left_(bytes) {}
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  bool read_header();
  bool start(bool on_white);  // after it, `row_bytes` and `wide_gray` are known
  bool read_rows(png_bytepp rows);

  int width() const { return static_cast<int>(png_get_image_width(png_, info_)); }
  int height() const { return static_cast<int>(png_get_image_height(png_, info_)); }
  bool wide_gray() const { return wide_gray_; }  // rows hold 16-bit gray instead of RGB
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }
  DecodeFailure failure() const;

 private:
  static PngReader& self(png_structp png) { return *static_cast<PngReader*>(png_get_error_ptr(png)); }
  static void on_error(png_structp png, png_const_charp message);
  static void read(png_structp png, png_bytep out, std::size_t count);

  std::string_view left_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf return_point_;
  char message_[128] = "out of memory";
  bool truncated_ = false, wide_gray_ = false;
};

void PngReader::on_error(png_structp png, png_const_charp message) {
  PngReader& reader = self(png);
  std::snprintf(reader.message_, sizeof reader.message_, "%s", message);
  std::longjmp(reader.return_point_, 1);
}

void PngReader::read(png_structp png, png_bytep out, std::size_t count) {
  PngReader& reader = self(png);
  if (reader.left_.size() < count) {
    reader.truncated_ = true;
    png_error(png, "end of file");
  }
  std::memcpy(out, reader.left_.data(), count);
  reader.left_.remove_prefix(count);
}

bool PngReader::read_header() {
  if (setjmp(return_point_)) return false;
  png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, [](png_structp, png_const_charp) {});
  info_ = png_ ? png_create_info_struct(png_) : nullptr;
  if (!info_) return false;
  png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_size has the say
  png_set_chunk_malloc_max(png_, max_chunk_bytes);
  png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, texts_and_palettes, texts_and_palettes_count);
  png_set_read_fn(png_, this, read);
  png_read_info(png_, info_);
  return true;
}

bool PngReader::start(bool on_white) {
  if (setjmp(return_point_)) return false;
  const bool alpha = png_get_color_type(png_, info_) & PNG_COLOR_MASK_ALPHA;
  const bool gray = !(png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR);
  wide_gray_ = gray && !alpha && png_get_bit_depth(png_, info_) == 16;
  if (wide_gray_) {
    if constexpr (std::endian::native == std::endian::little) png_set_swap(png_);
  } else {
    png_set_expand(png_);                // palettes, 1 to 4 bits
    png_set_strip_16(png_);              // the high byte, as Pillow
    if (on_white && (alpha || !gray)) {  // as OpenCV, which reads over the transparent level of a gray image
      const auto white = static_cast<png_uint_16>(png_get_bit_depth(png_, info_) == 16 ? 0xFFFF : 0xFF);
      const png_color_16 color{0, white, white, white, white};
      png_set_background(png_, &color, PNG_BACKGROUND_GAMMA_SCREEN, /*need_expand=*/0, /*background_gamma=*/1);
    } else {
      png_set_strip_alpha(png_);
    }
    png_set_gray_to_rgb(png_);
  }
  png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  return true;
}

bool PngReader::read_rows(png_bytepp rows) {
  if (setjmp(return_point_)) return false;
  png_read_image(png_, rows);
  return true;
}

DecodeFailure PngReader::failure() const {
  if (truncated_) return {DecodeError::truncated, "PNG is cut short"};
  return {DecodeError::undecodable, fmt::format("PNG: {}", message_)};
}

// Pillow clips 16-bit gray to 255 instead of scaling it.
void convert_wide_gray(const cv::Mat& wide, Image& image) {
  cv::Mat gray;
  wide.convertTo(gray, CV_8U);
  cv::cvtColor(gray, as_mat(image), cv::COLOR_GRAY2RGB);
}

}  // namespace

std::optional<DecodeFailure> decode_png(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                        Image& image) {
  PngReader reader(bytes);
  if (!reader.read_header()) return reader.failure();
  if (auto failure = check_size(reader.width(), reader.height(), config)) return failure;
  if (!reader.start(wanted.on_white)) return reader.failure();

  set_size(image, reader.width(), reader.height());
  const cv::Mat wide = reader.wide_gray() ? cv::Mat(image.height, image.width, CV_16UC1) : cv::Mat();
  std::uint8_t* pixels = reader.wide_gray() ? wide.data : image.pixels.data();
  std::vector<png_bytep> rows(image.height);
  for (int y = 0; y < image.height; ++y) rows[y] = pixels + y * reader.row_bytes();
  if (!reader.read_rows(rows.data())) return reader.failure();
  if (reader.wide_gray()) convert_wide_gray(wide, image);
  return {};
}

}  // namespace millrace
