#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/io/dtype.h"

namespace millrace {

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// Writes a safetensors file, tensor by tensor and piece by piece, byte for byte as the reference library does. Every
// tensor is declared first; their bytes follow in the order of `order()`; a file appears only with `commit`.
class SafetensorsWriter {
 public:
  SafetensorsWriter(fs::path path, std::vector<TensorSpec> tensors,
                    const SafetensorsMetadata& metadata = {{"format", "pt"}});

  // The tensors as they lie in the file: by type (u64 first, bool last), then by name.
  const std::vector<TensorSpec>& order() const { return tensors_; }
  // The next bytes of tensor `name`, row-major, little-endian.
  void write(std::string_view name, std::span<const std::byte> piece);
  AtomicFile::Written commit();

 private:
  bool current_is_full() const;

  std::vector<TensorSpec> tensors_;
  std::vector<std::uint64_t> sizes_;  // bytes of each tensor
  std::size_t current_ = 0;           // the tensor being written, and how many bytes of it are there
  std::uint64_t written_ = 0;
  AtomicFile file_;
};

// A tensor whose bytes are in memory already.
struct TensorBytes {
  TensorSpec spec;
  std::span<const std::byte> bytes;
};

AtomicFile::Written save_safetensors(const fs::path& path, const std::vector<TensorBytes>& tensors,
                                     const SafetensorsMetadata& metadata = {{"format", "pt"}});

}  // namespace millrace
