#include "millrace/models/tensors.h"

#include <array>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/io/safetensors.h"
#include "millrace/io/safetensors_writer.h"

namespace millrace {

namespace {

constexpr std::array<std::pair<DType, torch::Dtype>, 18> dtypes{{{DType::boolean, torch::kBool},
                                                                 {DType::u8, torch::kUInt8},
                                                                 {DType::i8, torch::kInt8},
                                                                 {DType::f8_e5m2, torch::kFloat8_e5m2},
                                                                 {DType::f8_e4m3, torch::kFloat8_e4m3fn},
                                                                 {DType::f8_e4m3fnuz, torch::kFloat8_e4m3fnuz},
                                                                 {DType::f8_e5m2fnuz, torch::kFloat8_e5m2fnuz},
                                                                 {DType::i16, torch::kInt16},
                                                                 {DType::u16, torch::kUInt16},
                                                                 {DType::f16, torch::kFloat16},
                                                                 {DType::bf16, torch::kBFloat16},
                                                                 {DType::i32, torch::kInt32},
                                                                 {DType::u32, torch::kUInt32},
                                                                 {DType::f32, torch::kFloat32},
                                                                 {DType::c64, torch::kComplexFloat},
                                                                 {DType::f64, torch::kFloat64},
                                                                 {DType::i64, torch::kInt64},
                                                                 {DType::u64, torch::kUInt64}}};

}  // namespace

std::optional<torch::Dtype> try_torch_dtype(DType dtype) {
  for (const auto& [in_file, in_torch] : dtypes) {
    if (in_file == dtype) return in_torch;
  }
  return std::nullopt;
}

std::optional<DType> try_file_dtype(torch::Dtype dtype) {
  for (const auto& [in_file, in_torch] : dtypes) {
    if (in_torch == dtype) return in_file;
  }
  return std::nullopt;
}

Tensors read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const TensorInfo& info : file.tensors()) {
    const auto dtype = try_torch_dtype(info.dtype);
    if (!dtype) fail(Exit::io, "{}: '{}' has the unsupported type {}", path.string(), info.name, to_string(info.dtype));
    const auto tensor = torch::empty(info.shape, *dtype);
    file.read(info, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    tensors.emplace(info.name, tensor);
  }
  return tensors;
}

void write_tensors(const std::filesystem::path& path, const Tensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<torch::Tensor> on_host;  // owns what the spans below look at
  std::vector<TensorBytes> contents;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype = try_file_dtype(tensor.scalar_type());
    ensure(dtype.has_value(), "a safetensors file can hold this element type");
    const auto& host = on_host.emplace_back(tensor.detach().to(torch::kCPU).contiguous());
    contents.push_back(
        {{name, *dtype, host.sizes().vec()}, {static_cast<const std::byte*>(host.data_ptr()), host.nbytes()}});
  }
  save_safetensors(path, contents, metadata);
}

}  // namespace millrace
