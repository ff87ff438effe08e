#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <map>
#include <string>

namespace millrace {

// The parameters that a module has now, by their state-dict names: not copied, and without gradients. They stay what
// they are when the module is cast or moved.
std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module);

// The numbers in all of them.
std::int64_t count_parameters(const torch::nn::Module& module);

}  // namespace millrace
