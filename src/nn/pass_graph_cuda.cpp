#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/utils.h>

#include "millrace/core/error.h"
#include "millrace/nn/pass_graph.h"

namespace millrace {

struct PassGraph::Recording {
  at::cuda::CUDAGraph graph;
  Tensors inputs;
  torch::Tensor loss;
};

namespace {

// Calls of other threads, which encode or copy meanwhile, are none of a recording's business.
constexpr auto capture_mode = cudaStreamCaptureModeThreadLocal;

// LibTorch's default stream cannot be recorded. Always the same one: graphs share memory within a stream only.
c10::cuda::CUDAStream recording_stream(c10::DeviceIndex device) {
  static const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device);
  return stream;
}

// Of a capture that has failed, which CUDA lets end by failing again.
void end_failed(at::cuda::CUDAGraph& graph) {
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
  }
}

}  // namespace

// Backward's kernels follow into the stream of forward's.
PassGraph::PassGraph(const Tensors& inputs, const Pass& pass, const PassGraph* shared)
    : recording_(std::make_unique<Recording>()) {
  for (const auto& input : inputs) recording_->inputs.push_back(at::empty_like(input));
  const NoRecording others;
  c10::cuda::device_synchronize();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const c10::cuda::CUDAStreamGuard in_stream(recording_stream(inputs.front().device().index()));
  auto& graph = recording_->graph;
  graph.capture_begin(shared ? shared->recording_->graph.pool() : at::MempoolId_t{0, 0}, capture_mode);
  try {
    recording_->loss = pass(recording_->inputs);
    graph.capture_end();
  } catch (const c10::OutOfMemoryError&) {
    end_failed(graph);
    throw;
  } catch (const c10::Error& error) {
    end_failed(graph);
    throw Error(Exit::usage, std::string("a CUDA graph cannot hold this pass: ") + error.what_without_backtrace(),
                "model.cuda_graphs=false, or a smaller batch.micro where CUDA had too little memory");
  } catch (...) {
    end_failed(graph);
    throw;
  }
}

PassGraph::~PassGraph() = default;

torch::Tensor PassGraph::replay(const Tensors& inputs) {
  const torch::NoGradGuard no_grad;
  ensure(inputs.size() == recording_->inputs.size(), "a graph is replayed with inputs like those of its recording");
  for (std::size_t i = 0; i < inputs.size(); ++i) recording_->inputs[i].copy_(inputs[i], /*non_blocking=*/true);
  recording_->graph.replay();
  return recording_->loss.clone();  // the next replay writes to it
}

}  // namespace millrace
