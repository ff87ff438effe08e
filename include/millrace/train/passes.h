#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "millrace/nn/pass_graph.h"
#include "millrace/parallel/sharded_model.h"

namespace millrace {

// Runs micro-batches forward and backward through a network: kernel by kernel or, from the second one of a shape on, as
// a CUDA graph.
class Passes {
 public:
  using Tensors = PassGraph::Tensors;
  // Computes the loss, a scalar with its autograd graph, from tensors on the device and nothing else.
  using LossOf = std::function<torch::Tensor(const Tensors& inputs)>;

  // A step's first pass overwrites the sums of gradients, later ones add to them. `by_kernels`: no CUDA graph, because
  // the pass communicates while it computes, or its tensors are to be recorded.
  enum class Kind { by_kernels, first, later };

  // The model must outlive this object. Error(usage) for graphs of a model on a CPU.
  Passes(ShardedModel& model, bool by_graphs);

  // Kind of pass `turn` of a step's `turns`. With several trainers the first pass waits for weights and the last one
  // sends gradients, so these two go by kernels.
  Kind kind_of(std::int64_t turn, std::int64_t turns) const;
  // Returns the loss, detached; the gradients go to the model. `meanwhile` is called once the device has work.
  torch::Tensor run(Kind kind, const Tensors& inputs, const LossOf& loss_of, const std::function<void()>& meanwhile);
  // Whether a CUDA graph has been recorded.
  bool has_graph() const { return first_.graph || later_.graph; }

 private:
  struct Recorded {
    std::vector<std::vector<std::int64_t>> shapes;  // of the first inputs, which ran by kernels
    std::unique_ptr<PassGraph> graph;
  };
  void record(Recorded& recorded, const Recorded& other, const Tensors& inputs, const LossOf& loss_of);

  ShardedModel& model_;
  bool by_graphs_;
  Recorded first_, later_;
};

}  // namespace millrace
