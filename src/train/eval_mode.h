#pragma once
#include <torch/nn/module.h>

namespace millrace {

// A network without dropout, for the length of a scope.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& network) : network_(network) { network_.eval(); }
  ~EvalMode() { network_.train(); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  torch::nn::Module& network_;
};

}  // namespace millrace
