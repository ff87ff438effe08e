#include "millrace/latents/encoding_shape.h"

#include <numeric>

namespace millrace {

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::size_t{1},
                         [](std::size_t n, std::int64_t side) { return n * static_cast<std::size_t>(side); });
}

std::size_t encoding_bytes(const EncodingShape& shape) {
  const std::size_t text_number = shape.has_tokens() ? sizeof(std::int32_t) : sizeof(std::uint16_t);
  return sizeof(std::uint16_t) * count_of(shape.moments) + text_number * count_of(shape.text);
}

}  // namespace millrace
