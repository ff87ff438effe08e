#pragma once
#include <torch/types.h>

#include <span>
#include <string>

#include "millrace/comm/group.h"

namespace millrace {

// A hash of all elements' bits, in order. On a GPU a checksum that is computed there: any one element that differs
// changes it, and equal ones only compare with others of a GPU.
std::string digest_of(std::span<const torch::Tensor> tensors);
// Sum of word i times 2 i + 1, modulo 2^64: odd factors, so that no single change is lost. Of a flat tensor, on its
// device: ().
torch::Tensor checksum_of(const torch::Tensor& flat);
// Call after rank 0 has sent these weights: Error(suspect_node) on all ranks if any of them holds other ones.
// Collective.
void check_arrival(const Group& trainers, std::span<const torch::Tensor> weights);

}  // namespace millrace
