#pragma once
#include <atomic>
#include <cstdint>

#include "millrace/image/image.h"

namespace millrace {

// Notices data whose images are mostly smaller than the training images, such as thumbnails. Warns once: after the
// first 1,000 accepted images. Safe to use from several threads.
class EnlargedWatch {
 public:
  // An image was accepted, and resized for a training image of this side.
  void count(const Image& image, int resolution);

  // One for all streams of a process that read data.train.
  static EnlargedWatch& of_training();

 private:
  std::atomic<std::uint64_t> counts_ = 0;  // low half: images; high half: those that are enlarged
};

}  // namespace millrace
