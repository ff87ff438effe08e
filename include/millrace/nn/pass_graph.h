#pragma once
#include <torch/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace {

// A forward and a backward pass as one CUDA graph. A U-Net's are some 3,000 kernels: with small batches a host takes
// longer to start them one by one than the GPU to run them; a graph's are started by the GPU.
class PassGraph {
 public:
  using Tensors = std::vector<torch::Tensor>;
  // From tensors on the device to the loss, a scalar without its graph. What else it reads and writes there, weights
  // and sums of gradients, stays at its place between replays; a replay knows nothing of what it does on the host.
  using Pass = std::function<torch::Tensor(const Tensors& inputs)>;

  // Records `pass` without computing anything. It must have run on this thread with tensors like `inputs`, for what
  // chooses a kernel or loads one cannot be recorded. LibTorch's unused memory goes back to the GPU first, since the
  // graph keeps memory of its own; with `shared` it is that of another graph, which never runs at the same time.
  // Error(usage) where the pass asks for what cannot be recorded; LibTorch's allocator is of no use then.
  PassGraph(const Tensors& inputs, const Pass& pass, const PassGraph* shared);
  ~PassGraph();
  PassGraph(const PassGraph&) = delete;
  PassGraph& operator=(const PassGraph&) = delete;

  // The pass on tensors like those it was recorded with; the host does not wait.
  torch::Tensor replay(const Tensors& inputs);

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
};

// While one lives, no other thread records a pass: for what may make the host wait for the whole device, as cuDNN does
// when it tries its kernels, since that breaks a recording on any thread.
class NoRecording {
 public:
  NoRecording();

 private:
  std::lock_guard<std::mutex> lock_;
};

}  // namespace millrace
