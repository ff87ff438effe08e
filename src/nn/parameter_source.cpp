#include "millrace/nn/parameter_source.h"

#include <torch/autograd.h>

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace::nn {

namespace {

// What the backward pass has to ask for. A capsule, because an autograd context stores only IValues.
struct Request : torch::CustomClassHolder {
  Request(ParameterSource* source, std::vector<torch::Tensor> parameters)
      : source(source), parameters(std::move(parameters)) {}
  ParameterSource* source;
  std::vector<torch::Tensor> parameters;
};

// The output as it is. Autograd comes through here right before the nodes that made it: the engine takes the newest
// node that is ready, and none is newer than they are.
struct ProvideInBackward : torch::autograd::Function<ProvideInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& output,
                               const c10::intrusive_ptr<Request>& request) {
    context->saved_data["request"] = c10::IValue::make_capsule(request);
    return output.view_as(output);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto request = c10::static_intrusive_pointer_cast<Request>(context->saved_data["request"].toCapsule());
    for (const auto& parameter : request->parameters) request->source->provide(parameter);
    return {gradients[0], torch::Tensor()};
  }
};

}  // namespace

torch::Tensor Layer::provided_before_backward(const std::vector<torch::Tensor>& parameters,
                                              const torch::Tensor& output) const {
  if (!output.requires_grad()) return output;
  return ProvideInBackward::apply(output, c10::make_intrusive<Request>(source_, parameters));
}

bool asks_for_parameters(const torch::nn::Module& model) {
  return std::ranges::all_of(model.modules(), [](const auto& module) {
    return module->parameters(/*recurse=*/false).empty() || dynamic_cast<const Layer*>(module.get()) != nullptr;
  });
}

void set_parameter_source(torch::nn::Module& model, ParameterSource* source) {
  for (const auto& module : model.modules()) {
    if (auto* layer = dynamic_cast<Layer*>(module.get())) {
      ensure(layer->parameters(/*recurse=*/false).size() <= 2,
             "a layer with more parameters than are gathered at once: " + layer->name());
      layer->set_parameter_source(source);
    } else {
      ensure(module->parameters(/*recurse=*/false).empty(), "a parameter outside of a layer: " + module->name());
    }
  }
}

}  // namespace millrace::nn
