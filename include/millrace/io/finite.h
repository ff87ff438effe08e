#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "millrace/core/files.h"
#include "millrace/io/dtype.h"

// Numbers that no network can work with: NaN and infinity.
namespace millrace {

struct NonFinite {
  std::uint64_t element;  // its position in the tensor, row-major
  double value;
};

// The first NaN or infinity among a tensor's bytes, which may start anywhere; always nothing for types other than F16,
// BF16, F32 and F64.
std::optional<NonFinite> find_non_finite(DType dtype, std::span<const std::byte> bytes);

// Error(io) naming file, tensor and element when there is one.
void refuse_non_finite(const fs::path& file, std::string_view tensor, DType dtype, std::span<const std::byte> bytes);

}  // namespace millrace
