#pragma once
#include <cstdint>

// Unit normals by Philox (core/philox.h): each row is what fill_normal gives for its key and purpose, to the bit.
namespace millrace::kernels {

inline constexpr int words_per_row = 5;  // of a row: the key's two, then the counter's last three

struct Normals {
  std::int64_t rows, per_row;
  const std::int32_t* words;  // (rows, words_per_row), the bits of uint32
  float* out;                 // (rows, per_row)
};
void run_cpu(const Normals& arguments);
void run_cuda(const Normals& arguments, void* stream);

}  // namespace millrace::kernels
