#pragma once
#include <opencv2/core.hpp>

#include "millrace/image/image.h"

// OpenCV for what need not equal Pillow's resize: turning, borders, colours, other sizes, letters.
namespace millrace {

// The image's own pixels, height x width of 8-bit RGB: nothing is copied, and what OpenCV writes is in the image as
// long as it keeps the size.
inline cv::Mat as_mat(Image& image) {
  // A process has the threads that it was given; OpenCV's pool would come on top of them.
  [[maybe_unused]] static const bool alone = (cv::setNumThreads(1), true);
  return {image.height, image.width, CV_8UC3, image.pixels.data()};
}

// The same for reading.
inline cv::Mat as_mat(const Image& image) {
  return as_mat(const_cast<Image&>(image));
}

}  // namespace millrace
