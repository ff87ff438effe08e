#pragma once
#include <cstdint>
#include <random>
#include <string>

#include "millrace/dataset/sample.h"

namespace millrace::test {

// A sample of noise and random tokens; the same for the same number.
inline TransformedSample noise_sample(int number, int resolution) {
  std::mt19937 random(static_cast<unsigned>(number));
  TransformedSample sample;
  sample.ref.id = "archive.tar/" + std::to_string(number);
  sample.ref.hash = 1000u + static_cast<unsigned>(number);
  sample.image = {resolution, resolution, Pixels(static_cast<std::size_t>(resolution) * resolution * 3)};
  for (auto& value : sample.image.pixels) value = static_cast<std::uint8_t>(random());
  sample.tokens.assign(token_count, 49407);
  sample.tokens[0] = 49406;
  for (int i = 1; i < 2 + number % 70; ++i) sample.tokens[i] = static_cast<std::int32_t>(random() % 49406);
  return sample;
}

}  // namespace millrace::test
