#include <fmt/format.h>
#include <webp/decode.h>

#include <algorithm>
#include <opencv2/imgproc.hpp>

#include "decode_formats.h"
#include "opencv.h"

namespace millrace {

namespace {

constexpr std::size_t file_header_bytes = 12, chunk_header_bytes = 8;

std::uint32_t little_endian(std::string_view bytes, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return value;
}

// One RIFF chunk: four-letter name, length, payload, padding to an even length.
struct Chunk {
  std::string_view name, payload, whole;
};

std::optional<Chunk> next_chunk(std::string_view& bytes) {
  if (bytes.size() < chunk_header_bytes) return {};
  const std::size_t length = little_endian(bytes.substr(4), 4);
  if (length > bytes.size() - chunk_header_bytes) return {};
  Chunk chunk{bytes.substr(0, 4), bytes.substr(chunk_header_bytes, length),
              bytes.substr(0, chunk_header_bytes + length)};
  bytes.remove_prefix(std::min(bytes.size(), chunk.whole.size() + length % 2));
  return chunk;
}

std::optional<Chunk> find_chunk(std::string_view bytes, std::string_view prefix) {
  while (auto chunk = next_chunk(bytes)) {
    if (chunk->name.starts_with(prefix)) return chunk;
  }
  return {};
}

// The image of a file that is none of an animation: its alpha, where there is some, to the end of its pixels. Not what
// stands behind them, which would be taken for more of them where they end early.
std::optional<std::string_view> still_image(std::string_view chunks) {
  const char* begin = nullptr;
  while (const auto chunk = next_chunk(chunks)) {
    const bool pixels = chunk->name == "VP8 " || chunk->name == "VP8L";
    if (!begin && (pixels || chunk->name == "ALPH")) begin = chunk->whole.data();
    if (pixels) return std::string_view(begin, chunks.data());
  }
  return {};
}

// The first frame of an animation: its place on the canvas and its bitstream.
struct Frame {
  int x, y;
  std::string_view bitstream;
};

std::optional<Frame> first_frame(std::string_view chunks) {
  const auto frame = find_chunk(chunks, "ANMF");
  if (!frame || frame->payload.size() < 16) return {};
  const auto bitstream = find_chunk(frame->payload.substr(16), "VP8");
  if (!bitstream) return {};
  return Frame{static_cast<int>(2 * little_endian(frame->payload, 3)),
               static_cast<int>(2 * little_endian(frame->payload.substr(3), 3)), bitstream->whole};
}

DecodeFailure failure(VP8StatusCode status) {
  if (status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED) {
    return {DecodeError::truncated, "WebP ends before its last row"};
  }
  return {DecodeError::undecodable, fmt::format("WebP: status {}", static_cast<int>(status))};
}

const std::uint8_t* data(std::string_view bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

// Colours over white, to the nearest level.
void lay_on_white(const cv::Mat& rgba, const cv::Mat& rgb) {
  cv::Mat colors, alpha;
  cv::cvtColor(rgba, colors, cv::COLOR_RGBA2RGB);
  cv::extractChannel(rgba, alpha, 3);
  cv::cvtColor(alpha, alpha, cv::COLOR_GRAY2RGB);
  cv::multiply(colors, alpha, colors, 1.0 / 255);
  cv::add(colors, ~alpha, rgb);
}

// Decodes into `image` at (x, y); alpha is dropped where it is not laid on white.
VP8StatusCode decode_into(Image& image, int x, int y, std::string_view bitstream, bool on_white) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return VP8_STATUS_INVALID_PARAM;
  if (const auto status = WebPGetFeatures(data(bitstream), bitstream.size(), &config.input); status != VP8_STATUS_OK) {
    return status;
  }
  if (x + config.input.width > image.width || y + config.input.height > image.height) return VP8_STATUS_BITSTREAM_ERROR;
  cv::Mat place = as_mat(image)(cv::Rect(x, y, config.input.width, config.input.height));
  on_white = on_white && config.input.has_alpha;
  cv::Mat pixels = on_white ? cv::Mat(place.size(), CV_8UC4) : place;
  config.output.colorspace = on_white ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA = {pixels.data, static_cast<int>(pixels.step),
                          static_cast<std::size_t>(pixels.dataend - pixels.data)};
  const auto status = WebPDecode(data(bitstream), bitstream.size(), &config);
  if (on_white && status == VP8_STATUS_OK) lay_on_white(pixels, place);
  return status;
}

}  // namespace

std::optional<DecodeFailure> decode_webp(std::string_view bytes, const ImageConfig& config, const WantedPixels& wanted,
                                         Image& image) {
  WebPBitstreamFeatures features;
  if (const auto status = WebPGetFeatures(data(bytes), bytes.size(), &features); status != VP8_STATUS_OK) {
    return failure(status);
  }
  if (auto size_failure = check_size(features.width, features.height, config)) return size_failure;
  const std::size_t length = little_endian(bytes.substr(4), 4);
  if (length > bytes.size() - chunk_header_bytes) return failure(VP8_STATUS_NOT_ENOUGH_DATA);
  const std::string_view chunks = bytes.substr(0, chunk_header_bytes + length).substr(file_header_bytes);

  set_size(image, features.width, features.height);
  Frame frame{};
  if (features.has_animation) {
    std::ranges::fill(image.pixels, wanted.on_white ? 255 : 0);  // the frame may be smaller than the canvas
    const auto first = first_frame(chunks);
    if (!first) return failure(VP8_STATUS_BITSTREAM_ERROR);
    frame = *first;
  } else {
    const auto still = still_image(chunks);
    if (!still) return failure(VP8_STATUS_NOT_ENOUGH_DATA);
    frame.bitstream = *still;
  }
  if (const auto status = decode_into(image, frame.x, frame.y, frame.bitstream, wanted.on_white);
      status != VP8_STATUS_OK) {
    return failure(status);
  }
  return {};
}

}  // namespace millrace
