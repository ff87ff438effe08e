#include "millrace/core/error.h"
#include "millrace/nn/pass_graph.h"

namespace millrace {

struct PassGraph::Recording {};

PassGraph::PassGraph(const Tensors&, const Pass&, const PassGraph*) {
  throw Error(Exit::usage, "CUDA graphs need a GPU, and this build has no CUDA", "model.cuda_graphs=false");
}

PassGraph::~PassGraph() = default;

torch::Tensor PassGraph::replay(const Tensors&) {
  return {};
}

}  // namespace millrace
