#include "millrace/train/passes.h"

#include "millrace/core/error.h"

namespace millrace {

static std::vector<std::vector<std::int64_t>> shapes_of(const Passes::Tensors& inputs) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const auto& input : inputs) shapes.push_back(input.sizes().vec());
  return shapes;
}

Passes::Passes(ShardedModel& model, bool by_graphs) : model_(model), by_graphs_(by_graphs) {
  if (by_graphs && !model.parameter_shard(0).is_cuda())
    throw Error(Exit::usage, "CUDA graphs need a GPU", "model.cuda_graphs=false");
}

Passes::Kind Passes::kind_of(std::int64_t turn, std::int64_t turns) const {
  const bool is_first = turn == 0, is_last = turn + 1 == turns;
  if (model_.plan().splits_parameters()) return Kind::by_kernels;
  if (model_.trainers().size() > 1 && (is_first || is_last)) return Kind::by_kernels;
  return is_first ? Kind::first : Kind::later;
}

torch::Tensor Passes::run(Kind kind, const Tensors& inputs, const LossOf& loss_of,
                          const std::function<void()>& meanwhile) {
  auto& recorded = kind == Kind::first ? first_ : later_;
  const bool is_repeated = by_graphs_ && kind != Kind::by_kernels && recorded.shapes == shapes_of(inputs);
  if (is_repeated) {
    if (recorded.graph) {
      model_.repeat_gradients();
    } else {
      record(recorded, kind == Kind::first ? later_ : first_, inputs, loss_of);  // its host does this one's part
    }
    const auto loss = recorded.graph->replay(inputs);
    meanwhile();
    return loss;
  }
  const auto loss = loss_of(inputs);
  meanwhile();
  loss.backward();
  // A smaller micro-batch at the end of a step goes on by kernels.
  if (kind != Kind::by_kernels && recorded.shapes.empty()) recorded.shapes = shapes_of(inputs);
  return loss.detach();
}

void Passes::record(Recorded& recorded, const Recorded& other, const Tensors& inputs, const LossOf& loss_of) {
  const auto pass = [&](const Tensors& own) {
    const auto loss = loss_of(own);
    loss.backward();
    return loss.detach();
  };
  recorded.graph = std::make_unique<PassGraph>(inputs, pass, other.graph.get());
  ensure(model_.has_all_gradients(), "a pass that is repeated gives every parameter a gradient");
}

}  // namespace millrace
