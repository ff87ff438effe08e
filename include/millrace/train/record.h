#pragma once
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/dataset/sample.h"

namespace millrace {

// Collects the tensors of one step for its record, micro-batch by micro-batch; keeps nothing between `take` and
// `start`.
class RecordPieces {
 public:
  void start();
  // Adds samples of one tensor, copied to host memory as fp32 or i64; nothing happens before `start`.
  void keep(const std::string& name, const torch::Tensor& piece);
  // Every tensor, its pieces concatenated.
  std::map<std::string, torch::Tensor> take();

 private:
  bool active_ = false;
  std::map<std::string, std::vector<torch::Tensor>> pieces_;
};

// Ids of the global batch, one local batch after the other, on rank 0; empty elsewhere. Bytes that are not UTF-8 become
// U+FFFD. Collective.
std::vector<std::string> gather_ids(const Group& trainers, const std::vector<SampleRef>& refs);

// Writes RUN/records/step-00000007.safetensors: the tensors of all local batches, concatenated in the order of
// ids.jsonl, with loss and grad_norm; step and ids are in the metadata. Collective; rank 0 writes, and warns if it
// cannot.
void write_record(const Group& trainers, const std::filesystem::path& run_dir, std::int64_t step,
                  const std::vector<SampleRef>& refs, const std::map<std::string, torch::Tensor>& tensors, double loss,
                  double grad_norm);

}  // namespace millrace
