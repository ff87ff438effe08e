#pragma once
#include <cstdint>

namespace millrace {

// Headers and members of a tar start at multiples of it.
inline constexpr std::uint64_t tar_block_bytes = 512;

}  // namespace millrace
