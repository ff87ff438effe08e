#include "bench/layers.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

namespace millrace {

namespace {

double product(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies());
}

std::int64_t out_size(const LayerShape& s, std::size_t dimension) {
  return (s.input[dimension] + 2 * s.padding - s.second[dimension]) / s.stride + 1;
}

LayerShape convolution_of(c10::ArrayRef<const c10::IValue> arguments) {
  const auto &x = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  return {LayerKind::convolution,
          x.sizes().vec(),
          weight.sizes().vec(),
          !arguments[2].isNone(),
          arguments[3].toIntVector()[0],
          arguments[4].toIntVector()[0],
          x.requires_grad()};
}

LayerShape matrix_product_of(c10::ArrayRef<const c10::IValue> arguments) {
  const auto &x = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  return {.kind = LayerKind::matrix_product,
          .input = {x.numel() / x.size(-1), x.size(-1)},
          .second = weight.sizes().vec(),
          .with_bias = !arguments[2].isNone(),
          .wants_input_gradient = x.requires_grad()};
}

LayerShape attention_of(c10::ArrayRef<const c10::IValue> arguments) {
  return {.kind = LayerKind::attention,
          .input = arguments[0].toTensor().sizes().vec(),
          .second = arguments[1].toTensor().sizes().vec()};
}

thread_local std::map<LayerShape, int> calls_of_thread;  // a callback of LibTorch's is a plain function

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  if (name == "aten::conv2d") ++calls_of_thread[convolution_of(function.inputs())];
  if (name == "aten::linear") ++calls_of_thread[matrix_product_of(function.inputs())];
  if (name == "aten::scaled_dot_product_attention") ++calls_of_thread[attention_of(function.inputs())];
  return nullptr;
}

// Of the calling thread's operators, as long as it lives.
struct Listener {
  Listener()
      : handle(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&note).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { at::removeCallback(handle); }

  at::CallbackHandle handle;
};

}  // namespace

std::map<LayerShape, int> layers_of(const std::function<void()>& forward) {
  calls_of_thread.clear();
  const Listener listener;
  forward();
  return std::exchange(calls_of_thread, {});
}

std::string name_of(const LayerShape& s) {
  const char* source = s.wants_input_gradient ? "" : " from input";
  switch (s.kind) {
    case LayerKind::convolution:
      return fmt::format("{0}x{0}{1} {2} -> {3}, {4}x{5}{6}", s.second[2],
                         s.stride == 1 ? "" : fmt::format(" /{}", s.stride), s.input[1], s.second[0], s.input[2],
                         s.input[3], source);
    case LayerKind::matrix_product:
      return fmt::format("{} x {} -> {}{}{}", s.input[0], s.input[1], s.second[0], s.with_bias ? " + bias" : "",
                         source);
    case LayerKind::attention:
      return fmt::format("{} head{} of {}, {} x {}", s.input[1], s.input[1] == 1 ? "" : "s", s.input[3], s.input[2],
                         s.second[2]);
  }
  return {};
}

double flops_of(const LayerShape& s) {
  switch (s.kind) {
    case LayerKind::convolution:
      return 2 * product(s.second) * static_cast<double>(s.input[0] * out_size(s, 2) * out_size(s, 3));
    case LayerKind::matrix_product:
      return 2 * product(s.second) * static_cast<double>(s.input[0]);
    case LayerKind::attention:  // q k^T, and the probabilities with v
      return 4 * product(s.input) * static_cast<double>(s.second[2]);
  }
  return 0;
}

std::vector<LayerPass> passes_of(const LayerShape& shape) {
  using enum LayerPass;
  if (shape.kind == LayerKind::attention) return {forward, gradients};
  if (!shape.wants_input_gradient) return {forward, weight_gradient};
  return {forward, input_gradient, weight_gradient};
}

double flops_of(const LayerShape& shape, LayerPass pass) {
  return pass == LayerPass::gradients ? 2 * flops_of(shape) : flops_of(shape);
}

}  // namespace millrace
