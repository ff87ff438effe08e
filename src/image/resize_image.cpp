#include "millrace/image/resize_image.h"

#include <opencv2/imgproc.hpp>

#include "opencv.h"

namespace millrace {

Image resize_image(const Image& image, int width, int height) {
  Image out = make_image(width, height);
  const bool shrinks = width < image.width || height < image.height;
  cv::resize(as_mat(image), as_mat(out), cv::Size(width, height), 0, 0, shrinks ? cv::INTER_AREA : cv::INTER_LANCZOS4);
  return out;
}

Image crop_center(const Image& image, int width, int height) {
  Image out = make_image(width, height);
  const cv::Rect middle((image.width - width) / 2, (image.height - height) / 2, width, height);
  as_mat(image)(middle).copyTo(as_mat(out));
  return out;
}

Image add_borders(const Image& image, int width, int height, std::uint8_t level) {
  Image out = make_image(width, height);
  const int left = (width - image.width) / 2, top = (height - image.height) / 2;
  cv::copyMakeBorder(as_mat(image), as_mat(out), top, height - image.height - top, left, width - image.width - left,
                     cv::BORDER_CONSTANT, cv::Scalar::all(level));
  return out;
}

}  // namespace millrace
