#pragma once
#include <torch/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "millrace/checkpoint/reader.h"
#include "millrace/io/input_file.h"
#include "millrace/parallel/flat_layout.h"

namespace millrace {

// Reads tensors of a checkpoint, which must outlive this. Opens its files when they are needed, one at a time, and
// reads only what is asked for. Error(io) names file and tensor.
class CheckpointTensors {
 public:
  explicit CheckpointTensors(const CheckpointReader& checkpoint) : checkpoint_(checkpoint) {}

  // A whole tensor: fp32, in the module's order of dimensions.
  torch::Tensor tensor(const std::string& kind, const std::string& name);
  // Reads the elements of a slice. Error(io) when the checkpoint's tensor has another shape.
  void read(const std::string& kind, const Slice& slice, std::span<float> elements);

 private:
  // Where the bytes of a tensor are in its file.
  struct Place {
    std::uint64_t begin = 0, bytes = 0;
  };
  // The elements from `begin` on, in the checkpoint's order.
  void read(const std::string& key, const CheckpointTensor& tensor, std::int64_t begin, std::span<float> elements);
  Place open(std::size_t file, const std::string& key);

  const CheckpointReader& checkpoint_;
  std::map<std::size_t, std::map<std::string, Place>> places_;  // of files opened before
  std::size_t file_number_ = 0;
  std::unique_ptr<InputFile> file_;
};

}  // namespace millrace
