#pragma once
#include <torch/nn/module.h>

namespace millrace {

// A network without dropout, for the length of a scope.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& network) : network_(network) { network_.eval(); }
  ~Evaluating() { network_.train(); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& network_;
};

}  // namespace millrace
