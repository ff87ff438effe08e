#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/io/dtype.h"
#include "millrace/io/input_file.h"

// Reading safetensors files: 8 bytes of header length, a JSON header, the tensors' bytes without a gap.
namespace millrace {

inline constexpr std::uint64_t max_safetensors_header = 100'000'000;  // bytes, as other readers have it

// Where one tensor lies; row-major, little-endian; shape () is one element.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes, counted from the start of the data area
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::uint64_t data_offset = 0;    // of the data area in the file
};

// Checks the whole structure of `file` and returns its table. Error(io) names `where` and the tensor: lengths beyond
// the file, unknown types, duplicate names, sizes that overflow or differ from shape x type, gaps, overlaps, left-over
// bytes.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view where);
// The same from the first bytes of a file of `file_bytes`, the header at least.
SafetensorsHeader parse_safetensors(std::span<const std::byte> begin, std::uint64_t file_bytes, std::string_view where);
SafetensorsHeader read_safetensors_header(const InputFile& file, std::string_view where);

// A safetensors file, whose tensors are read when they are asked for. It is not mapped: storage that fails would end
// the process by SIGBUS, without a word.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(fs::path path);

  const fs::path& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }

  bool contains(std::string_view name) const { return index_.contains(name); }
  const TensorInfo& info(std::string_view name) const;  // Error(io) naming file and tensor when absent
  // All bytes of a tensor into `out`, which is as large.
  void read(const TensorInfo& info, std::span<std::byte> out) const;
  std::vector<std::byte> bytes(const TensorInfo& info) const;
  std::vector<std::byte> bytes(std::string_view name) const { return bytes(info(name)); }

 private:
  fs::path path_;
  std::unique_ptr<const InputFile> file_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;  // name -> position in header_.tensors
};

}  // namespace millrace
