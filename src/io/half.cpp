#include "millrace/io/half.h"

#include <arrow/util/float16.h>

namespace millrace {

std::uint16_t to_half(float value) {
  return arrow::util::Float16::FromFloat(value).bits();
}

float from_half(std::uint16_t bits) {
  return arrow::util::Float16::FromBits(bits).ToFloat();
}

}  // namespace millrace
