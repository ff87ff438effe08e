#include "millrace/image/grid.h"

#include <algorithm>
#include <cmath>
#include <opencv2/imgproc.hpp>
#include <string_view>
#include <vector>

#include "millrace/core/error.h"
#include "opencv.h"

namespace millrace {

namespace {

constexpr int gap = 2;
constexpr std::size_t max_lines = 3;
constexpr int min_captioned_width = 96;  // about fifteen letters

// Pixels of the letters.
constexpr int font = cv::FONT_HERSHEY_SIMPLEX, line_height = 14, base_line = 10;
constexpr double font_scale = 0.35;

int width_of(const std::string& text) {
  return cv::getTextSize(text, font, font_scale, /*thickness=*/1, nullptr).width;
}

// What the font has letters for: printable ASCII.
std::string to_ascii(std::string_view utf8) {
  std::string text;
  for (const unsigned char byte : utf8) {
    if ((byte & 0xC0) == 0x80) continue;  // a further byte of a character
    text += byte <= ' ' ? ' ' : byte < 0x7F ? static_cast<char>(byte) : '?';
  }
  return text;
}

// The first line of the text: up to a space where it is too long, or in the middle of a word that is too long itself.
std::string_view cut_line(std::string_view text, int width) {
  std::size_t length = 1;
  while (length < text.size() && width_of(std::string(text.substr(0, length + 1))) <= width) ++length;
  if (length == text.size()) return text;
  const std::size_t space = text.substr(0, length + 1).rfind(' ');
  return text.substr(0, space == text.npos ? length : space);
}

std::vector<std::string> cut_lines(std::string_view utf8, int width) {
  const std::string text = to_ascii(utf8);
  std::vector<std::string> lines;
  for (std::string_view rest = text;;) {
    rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
    if (rest.empty()) return lines;
    if (lines.size() == max_lines) break;
    lines.emplace_back(cut_line(rest, width));
    rest.remove_prefix(lines.back().size());
  }
  std::string& last = lines.back();
  while (!last.empty() && (last.back() == ' ' || width_of(last + "...") > width)) last.pop_back();
  last += "...";
  return lines;
}

}  // namespace

Image make_grid(std::span<const Image> images, std::span<const std::string> captions) {
  ensure(!images.empty(), "a grid of no images");
  ensure(captions.empty() || captions.size() == images.size(), "a caption for every image");
  const int count = static_cast<int>(images.size());
  const int columns = static_cast<int>(std::ceil(std::sqrt(count))), rows = (count + columns - 1) / columns;
  int width = 0, height = 0;  // of a cell's image
  for (const Image& image : images) {
    width = std::max(width, image.width);
    height = std::max(height, image.height);
  }
  const int zoom = captions.empty() ? 1 : (min_captioned_width + width - 1) / width;
  width *= zoom;
  height *= zoom;
  std::vector<std::vector<std::string>> texts;
  std::size_t lines = 0;
  for (const std::string& caption : captions) {
    texts.push_back(cut_lines(caption, width));
    lines = std::max(lines, texts.back().size());
  }
  const int text_height = static_cast<int>(lines) * line_height;

  Image grid = make_image(columns * (width + gap) - gap, rows * (height + text_height + gap) - gap);
  const cv::Mat pixels = as_mat(grid);
  as_mat(grid).setTo(0);
  for (int i = 0; i < count; ++i) {
    const int left = i % columns * (width + gap), top = i / columns * (height + text_height + gap);
    const cv::Mat cell = pixels(cv::Rect(left, top, zoom * images[i].width, zoom * images[i].height));
    cv::resize(as_mat(images[i]), cell, cell.size(), 0, 0, cv::INTER_NEAREST);
    if (text_height == 0) continue;
    const cv::Mat below = pixels(cv::Rect(left, top + height, width, text_height));  // letters are cut at its edges
    for (int line = 0; const std::string& text : texts[i])
      cv::putText(below, text, {0, base_line + line_height * line++}, font, font_scale, cv::Scalar::all(255), 1,
                  cv::LINE_AA);
  }
  return grid;
}

}  // namespace millrace
