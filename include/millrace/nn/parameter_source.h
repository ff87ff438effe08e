#pragma once
#include <torch/nn/module.h>

#include <utility>
#include <vector>

namespace millrace::nn {

// Who keeps the parameters of a model, where only a part of them is in memory, or where they are still on their way.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // Makes a parameter whole, for the arithmetic that is started next. Unless all stay, only the last two of those asked
  // for are sure to be there.
  virtual void provide(const torch::Tensor& parameter) = 0;
  // Once provided, parameters are there for the backward pass, too.
  virtual bool all_stay() const = 0;
};

// A layer that owns one or two parameters, and asks for them before each use if it was given a source. Its output must
// not be changed in place.
class Layer : public torch::nn::Module {
 public:
  // The source must outlive the layer's use. Null: the parameters are always there.
  void set_parameter_source(ParameterSource* source) { source_ = source; }

 protected:
  // `compute`() with all parameters there, and those that its backward needs there again right before that. Of two
  // outputs, backward comes by the second.
  template <class Compute>
  auto with_parameters(const std::vector<torch::Tensor>& in_backward, Compute&& compute) {
    ask_for_parameters();
    return parameters_stay() ? compute() : provided_before_backward(in_backward, compute());
  }
  void ask_for_parameters() const {
    if (source_ == nullptr) return;
    for (const auto& parameter : parameters(/*recurse=*/false)) source_->provide(parameter);
  }
  // Once asked for they are there until the backward pass is over.
  bool parameters_stay() const { return source_ == nullptr || source_->all_stay(); }

 private:
  torch::Tensor provided_before_backward(const std::vector<torch::Tensor>& parameters,
                                         const torch::Tensor& output) const;
  std::pair<torch::Tensor, torch::Tensor> provided_before_backward(
      const std::vector<torch::Tensor>& parameters, const std::pair<torch::Tensor, torch::Tensor>& outputs) const {
    return {outputs.first, provided_before_backward(parameters, outputs.second)};
  }

  ParameterSource* source_ = nullptr;
};

// Whether every parameter of the model is a layer's, which will ask for it.
bool asks_for_parameters(const torch::nn::Module& model);
// Every layer of the model, which must have no parameters outside of layers: Error(bug).
void set_parameter_source(torch::nn::Module& model, ParameterSource* source);

}  // namespace millrace::nn
