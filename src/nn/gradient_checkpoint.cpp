#include "millrace/nn/gradient_checkpoint.h"

#include <torch/autograd.h>

#include <utility>

namespace millrace::nn {

namespace {

using Segment = std::function<TensorList(const TensorList&)>;

// What the backward pass needs to run the segment again. A capsule, because an autograd context stores only IValues.
struct Replay : torch::CustomClassHolder {
  Segment segment;
  at::Generator generator;     // undefined when nothing random happens
  torch::Tensor random_state;  // the generator's, before the first run
};

// Sets a generator back to an earlier state, and at the end of the scope to where it was.
class RewoundGenerator {
 public:
  explicit RewoundGenerator(const Replay& replay) : generator_(replay.generator) {
    if (!generator_.defined()) return;
    now_ = generator_.get_state();
    generator_.set_state(replay.random_state);
  }
  ~RewoundGenerator() {
    if (generator_.defined()) generator_.set_state(now_);
  }

 private:
  at::Generator generator_;
  torch::Tensor now_;
};

struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static TensorList forward(torch::autograd::AutogradContext* context, const c10::intrusive_ptr<Replay>& replay,
                            at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    context->saved_data["replay"] = c10::IValue::make_capsule(replay);
    return replay->segment(inputs.vec());
  }

  static TensorList backward(torch::autograd::AutogradContext* context, TensorList output_grads) {
    const auto replay = c10::static_intrusive_pointer_cast<Replay>(context->saved_data["replay"].toCapsule());
    TensorList inputs;
    for (const auto& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    run_backward(*replay, inputs, output_grads);
    TensorList input_grads = {torch::Tensor()};  // of the capsule
    for (const auto& input : inputs) input_grads.push_back(input.grad());
    return input_grads;
  }

 private:
  static void run_backward(const Replay& replay, const TensorList& inputs, const TensorList& output_grads) {
    const RewoundGenerator rewound(replay);
    const torch::AutoGradMode record(true);
    const TensorList outputs = replay.segment(inputs);
    TensorList reached, grads;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!output_grads[i].defined() || !outputs[i].requires_grad()) continue;
      reached.push_back(outputs[i]);
      grads.push_back(output_grads[i]);
    }
    torch::autograd::backward(reached, grads);
  }
};

}  // namespace

TensorList checkpoint(Segment segment, const TensorList& inputs, bool replay_random) {
  auto replay = c10::make_intrusive<Replay>();
  replay->segment = std::move(segment);
  if (replay_random) {
    replay->generator = at::globalContext().defaultGenerator(inputs.front().device());
    replay->random_state = replay->generator.get_state();
  }
  return Checkpoint::apply(replay, at::TensorList(inputs));
}

}  // namespace millrace::nn
