#include "millrace/core/error.h"
#include "millrace/nn/pass_graph.h"

namespace millrace {

struct PassGraph::Recording {};

PassGraph::PassGraph(const Tensors&, const Pass&, const PassGraph*) {
  throw bug("a build without CUDA records no pass");
}

PassGraph::~PassGraph() = default;

torch::Tensor PassGraph::replay(const Tensors&) {
  throw bug("a build without CUDA has no pass");
}

}  // namespace millrace
