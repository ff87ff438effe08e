#include <fmt/format.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <span>
#include <vector>

// After <cstdio>: the header needs FILE.
#include <jerror.h>
#include <jpeglib.h>

#include "decode_formats.h"

namespace millrace {

namespace {

// A progressive file may ask for thousands of passes over the image; real ones need about ten. Of a large image these
// are fewer: a scan costs about a nanosecond a pixel.
constexpr int max_scans = 500, usual_scans = 20;
constexpr std::int64_t max_scanned_pixels = 4'000'000'000;
constexpr int first_frame_marker = 0xC0;  // SOF0: below it there are none

// libjpeg reading from memory. The source suspends at the end of the bytes instead of inventing an end marker, so a
// truncated file is seen as one, exactly where Pillow sees it.
// NOTE [Jumps]: libjpeg reports errors by longjmp. Each member function below sets its own return point, holds nothing
// with a destructor, and jumps cross frames of libjpeg and of its C callbacks only.
class JpegReader {
 public:
  enum class Result { ok, failed, truncated };

  explicit JpegReader(std::string_view bytes);
  ~JpegReader() { jpeg_destroy_decompress(&decoder_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  Result read_header();
  // At `eighths` / 8 of the image's size; after it `width` and `height` are known.
  Result start(int eighths);
  // Leaves out what lies left and right of `columns`, where the rest does not depend on it: no inverse transform, no
  // upsampling, no colours.
  Result crop(PixelRange columns);
  // Into rows of width() pixels.
  Result read_rows(std::uint8_t* pixels, int channels);

  const jpeg_decompress_struct& info() const { return decoder_; }
  int width() const { return width_; }
  int height() const { return static_cast<int>(decoder_.output_height); }
  std::string message() const { return message_; }

 private:
  static JpegReader& self(j_common_ptr decoder) { return *static_cast<JpegReader*>(decoder->client_data); }
  static void on_error(j_common_ptr decoder);
  static void on_message(j_common_ptr decoder, int level);
  static void on_progress(j_common_ptr decoder);
  bool lacks_scans() const;

  jpeg_decompress_struct decoder_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf return_point_;
  char message_[JMSG_LENGTH_MAX] = "";
  int width_ = 0;
  JDIMENSION left_ = 0;       // first column that is decoded
  bool ended_early_ = false;  // an end marker stood before the last row of blocks
};

JpegReader::JpegReader(std::string_view bytes) {
  decoder_.err = jpeg_std_error(&errors_);
  errors_.error_exit = on_error;
  errors_.emit_message = on_message;
  decoder_.client_data = this;
  source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  source_.bytes_in_buffer = bytes.size();
  source_.init_source = source_.term_source = [](j_decompress_ptr) {};
  source_.fill_input_buffer = [](j_decompress_ptr) -> boolean { return FALSE; };
  source_.skip_input_data = [](j_decompress_ptr decoder, long bytes) {
    jpeg_source_mgr& source = *decoder->src;
    const std::size_t step = std::min<std::size_t>(bytes > 0 ? bytes : 0, source.bytes_in_buffer);
    source.next_input_byte += step;
    source.bytes_in_buffer -= step;
  };
  source_.resync_to_restart = jpeg_resync_to_restart;
  progress_.progress_monitor = on_progress;
}

void JpegReader::on_error(j_common_ptr decoder) {
  JpegReader& reader = self(decoder);
  decoder->err->format_message(decoder, reader.message_);
  std::longjmp(reader.return_point_, 1);
}

// Damaged blocks are shown as decoded, as in Pillow. Not so an early end: it would leave the rest of the image gray. In
// a file of one scan any marker ends the pixels, say that of another file behind the half of this one; but a damaged
// scan among several is followed by others, and what is no marker at all is passed over up to the next restart.
void JpegReader::on_message(j_common_ptr decoder, int level) {
  if (level >= 0) return;
  ++decoder->err->num_warnings;
  if (decoder->err->msg_code != JWRN_HIT_MARKER) return;
  const auto& state = *reinterpret_cast<j_decompress_ptr>(decoder);
  const bool restart = state.unread_marker >= JPEG_RST0 && state.unread_marker <= JPEG_RST0 + 7;
  const bool resyncs = state.restart_interval > 0 && state.unread_marker < first_frame_marker;
  const bool hit_end =
      state.unread_marker == JPEG_EOI || !(restart || resyncs || jpeg_has_multiple_scans(&self(decoder).decoder_));
  if (hit_end && state.input_iMCU_row + 1 < state.total_iMCU_rows) self(decoder).ended_early_ = true;
}

void JpegReader::on_progress(j_common_ptr decoder) {
  const auto& state = *reinterpret_cast<j_decompress_ptr>(decoder);
  const int scans = state.input_scan_number;
  const std::int64_t scanned = std::int64_t{scans} * state.image_width * state.image_height;
  if (scans <= usual_scans || (scans <= max_scans && scanned <= max_scanned_pixels)) return;
  JpegReader& reader = self(decoder);
  std::snprintf(reader.message_, sizeof reader.message_, "more than %d scans of %u x %u pixels", scans - 1,
                state.image_width, state.image_height);
  std::longjmp(reader.return_point_, 1);
}

JpegReader::Result JpegReader::read_header() {
  if (setjmp(return_point_)) return Result::failed;
  jpeg_create_decompress(&decoder_);  // here, since it may fail too
  decoder_.src = &source_;
  decoder_.progress = &progress_;
  return jpeg_read_header(&decoder_, TRUE) == JPEG_SUSPENDED ? Result::truncated : Result::ok;
}

JpegReader::Result JpegReader::start(int eighths) {
  if (setjmp(return_point_)) return Result::failed;
  decoder_.out_color_space = decoder_.num_components == 4 ? JCS_CMYK : JCS_RGB;
  decoder_.scale_num = static_cast<unsigned>(eighths);
  decoder_.scale_denom = DCTSIZE;
  if (!jpeg_start_decompress(&decoder_)) return Result::truncated;
  width_ = static_cast<int>(decoder_.output_width);
  return ended_early_ ? Result::truncated : Result::ok;
}

JpegReader::Result JpegReader::crop(PixelRange columns) {
  if (setjmp(return_point_)) return Result::failed;
  if (lacks_scans()) return Result::ok;
  // libjpeg cuts at whole blocks, and chroma is upsampled differently at a cut than inside the image.
  const int margin = decoder_.max_h_samp_factor * DCTSIZE;
  const int begin = std::max(columns.begin - margin, 0);
  const int end = std::min(columns.end + margin, width_);
  left_ = static_cast<JDIMENSION>(begin);
  JDIMENSION width = static_cast<JDIMENSION>(end - begin);
  if (end - begin < width_) jpeg_crop_scanline(&decoder_, &left_, &width);
  return Result::ok;
}

// Whether libjpeg smooths the image over neighbouring blocks, which a cut would take from it: coefficients of a
// progressive file that never came, or not to the last bit.
bool JpegReader::lacks_scans() const {
  constexpr int smoothed_coefficients = 10;
  if (!decoder_.progressive_mode || !decoder_.coef_bits) return false;
  for (int component = 0; component < decoder_.num_components; ++component) {
    const int* const missing_bits = decoder_.coef_bits[component];
    if (std::any_of(missing_bits, missing_bits + smoothed_coefficients, [](int bits) { return bits != 0; }))
      return true;
  }
  return false;
}

JpegReader::Result JpegReader::read_rows(std::uint8_t* pixels, int channels) {
  const std::size_t stride = static_cast<std::size_t>(width_) * channels;
  std::uint8_t* const first_row = pixels + static_cast<std::size_t>(left_) * channels;
  if (setjmp(return_point_)) return Result::failed;
  while (decoder_.output_scanline < decoder_.output_height) {
    JSAMPROW rows[16];
    for (unsigned i = 0; i < std::size(rows); ++i) {
      rows[i] = first_row + std::min(decoder_.output_scanline + i, decoder_.output_height - 1) * stride;
    }
    const JDIMENSION left = decoder_.output_height - decoder_.output_scanline;
    const JDIMENSION got = jpeg_read_scanlines(&decoder_, rows, std::min<JDIMENSION>(std::size(rows), left));
    if (got == 0 || ended_early_) return Result::truncated;
  }
  jpeg_finish_decompress(
      &decoder_);  // fails at what cannot stand behind the pixels; a missing end marker is no failure
  return Result::ok;
}

// Pillow's conversion of Adobe's inverted CMYK: ink coverage against black, rounded as x / 255.
std::uint8_t apply_ink(int inverted_color, int inverted_key) {
  const int product = (255 - inverted_color) * inverted_key + 128;
  return static_cast<std::uint8_t>(inverted_key - (((product >> 8) + product) >> 8));
}

void convert_cmyk(std::span<const std::uint8_t> cmyk, std::span<std::uint8_t> rgb) {
  for (std::size_t i = 0; i < cmyk.size() / 4; ++i) {
    for (int c = 0; c < 3; ++c) rgb[3 * i + c] = apply_ink(cmyk[4 * i + c], cmyk[4 * i + 3]);
  }
}

DecodeFailure describe(JpegReader::Result result, const JpegReader& reader) {
  if (result == JpegReader::Result::failed) return {DecodeError::undecodable, "JPEG: " + reader.message()};
  const auto& info = reader.info();
  return {DecodeError::truncated, fmt::format("JPEG truncated after {} of {} rows", info.output_scanline,
                                              info.output_height ? info.output_height : info.image_height)};
}

// The smallest size, in eighths, whose shorter side is still `enough`. Halves only: libjpeg-turbo's inverse transforms
// of the sizes between are slower than that of the whole block.
int choose_scale(const jpeg_decompress_struct& info, int enough) {
  const auto shorter = static_cast<std::int64_t>(std::min(info.image_width, info.image_height));
  for (const int eighths : {1, 2, 4})
    if ((shorter * eighths + DCTSIZE - 1) / DCTSIZE >= enough) return eighths;
  return DCTSIZE;
}

}  // namespace

std::optional<DecodeFailure> decode_jpeg(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                         Image& image) {
  JpegReader reader(bytes);
  if (const auto result = reader.read_header(); result != JpegReader::Result::ok) return describe(result, reader);

  const jpeg_decompress_struct& info = reader.info();
  if (auto failure = check_size(info.image_width, info.image_height, config)) return failure;
  if (info.num_components == 2 || info.num_components > 4) {
    return DecodeFailure{DecodeError::undecodable, fmt::format("JPEG with {} components", info.num_components)};
  }
  const bool may_shrink = config.decode == ImageConfig::Decode::fast && wanted.shorter_side > 0;
  const int eighths = may_shrink ? choose_scale(info, wanted.shorter_side) : DCTSIZE;
  if (const auto result = reader.start(eighths); result != JpegReader::Result::ok) return describe(result, reader);

  set_size(image, reader.width(), reader.height());
  if (wanted.columns) {
    const PixelRange columns = wanted.columns(image.width, image.height);
    if (const auto result = reader.crop(columns); result != JpegReader::Result::ok) return describe(result, reader);
  }
  std::vector<std::uint8_t> cmyk(info.num_components == 4 ? image.pixels.size() / 3 * 4 : 0);
  const auto result = cmyk.empty() ? reader.read_rows(image.pixels.data(), 3) : reader.read_rows(cmyk.data(), 4);
  if (result != JpegReader::Result::ok) return describe(result, reader);
  convert_cmyk(cmyk, image.pixels);
  return {};
}

}  // namespace millrace
