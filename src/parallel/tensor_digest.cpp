#include "tensor_digest.h"

#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/parallel/outvoted.h"

namespace millrace {

static torch::Dtype word_of(const torch::Tensor& tensor) {
  ensure(tensor.element_size() == 4 || tensor.element_size() == 2, "a digest of elements of 2 or 4 bytes");
  return tensor.element_size() == 4 ? torch::kInt32 : torch::kInt16;
}

torch::Tensor checksum_of(const torch::Tensor& flat) {
  constexpr std::int64_t at_once = 1 << 22;  // bounds what the 64-bit copies take
  const auto words = flat.view(word_of(flat));
  auto sum = torch::zeros({}, words.options().dtype(torch::kInt64));
  for (std::int64_t begin = 0; begin < words.numel(); begin += at_once) {
    const auto end = std::min(begin + at_once, words.numel());
    sum += torch::arange(begin, end, sum.options()).mul_(2).add_(1).mul_(words.slice(0, begin, end)).sum();
  }
  return sum;
}

std::string digest_of(std::span<const torch::Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  const kernels::OpScope scope("millrace::digest");
  Hasher128 hasher;
  std::vector<torch::Tensor> checksums;
  for (const auto& tensor : tensors) {
    if (tensor.is_cpu()) {
      hasher.update(tensor.data_ptr(), tensor.nbytes());
    } else {
      checksums.push_back(checksum_of(tensor));
    }
  }
  if (!checksums.empty()) {
    const auto host = torch::stack(checksums).cpu();
    hasher.update(host.data_ptr(), host.nbytes());
  }
  return hasher.digest().hex();
}

void check_arrival(const Group& trainers, std::span<const torch::Tensor> weights) {
  if (trainers.size() == 1) return;
  const auto differing = outvoted(trainers.all_gather_strings(digest_of(weights)));
  if (differing.trainers.empty()) return;
  throw Error(Exit::suspect_node,
              fmt::format("the weights of trainer 0 did not arrive as they were; trainers that differ: {}",
                          fmt::join(differing.trainers, ", ")),
              "memory or network of a node is damaged");
}

}  // namespace millrace
