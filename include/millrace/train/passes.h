#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "millrace/nn/pass_graph.h"
#include "millrace/parallel/sharded_model.h"

namespace millrace {

// How micro-batches go forward and backward through a network: kernel by kernel or, from the second one of a shape on,
// as a CUDA graph.
class Passes {
 public:
  using Tensors = PassGraph::Tensors;
  // A scalar with its graph, of tensors on the device and nothing else.
  using LossOf = std::function<torch::Tensor(const Tensors& inputs)>;

  // Of a step's passes the first one replaces the sums of gradients, the later ones add to them. `by_kernels`: one that
  // sends or receives while it computes, or whose tensors are to be seen.
  enum class Kind { by_kernels, first, later };

  // The model must outlive this object. Error(usage) for graphs of a model on a CPU.
  Passes(ShardedModel& model, bool by_graphs);

  // Of pass `turn` of a step's `turns`. Among several trainers weights arrive during a step's first pass, and gradients
  // leave during its last.
  Kind kind_of(std::int64_t turn, std::int64_t turns) const;
  // The loss, without its graph; the gradients go to the model. `meanwhile` is called once the device has work.
  torch::Tensor run(Kind kind, const Tensors& inputs, const LossOf& loss_of, const std::function<void()>& meanwhile);
  // Whether passes are repeated by one by now.
  bool has_graph() const { return first_.graph || later_.graph; }

 private:
  struct Recorded {
    std::vector<std::vector<std::int64_t>> shapes;  // of the inputs that have run by kernels
    std::unique_ptr<PassGraph> graph;
  };
  void record(Recorded& recorded, const Recorded& other, const Tensors& inputs, const LossOf& loss_of);

  ShardedModel& model_;
  bool by_graphs_;
  Recorded first_, later_;
};

}  // namespace millrace
