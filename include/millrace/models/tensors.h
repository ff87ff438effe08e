#pragma once
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "millrace/io/dtype.h"

// Whole safetensors files as tensors, for inputs, records and small results; weights of networks: weights.h.
namespace millrace {

using Tensors = std::map<std::string, torch::Tensor>;

// The same element type in the other vocabulary; nothing when it has no counterpart there.
std::optional<torch::Dtype> try_torch_dtype(DType dtype);
std::optional<DType> try_file_dtype(torch::Dtype dtype);

// All tensors of a file, copied to the host. Error(io) names file and tensor.
Tensors read_tensors(const std::filesystem::path& path);

// Writes tensors of any device and memory format, row-major; the file appears only when it is complete.
void write_tensors(const std::filesystem::path& path, const Tensors& tensors,
                   const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace millrace
