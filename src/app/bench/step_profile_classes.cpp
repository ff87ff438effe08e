#include <string_view>

#include "bench/step_profile.h"

namespace millrace {
namespace {

struct Pattern {
  std::string_view name;  // with * at its end: whatever follows; else this name or its in-place form, name_
  OpClass op_class;

  constexpr bool fits(std::string_view other) const {
    if (name.ends_with('*')) return other.starts_with(name.substr(0, name.size() - 1));
    return other == name || (other.size() == name.size() + 1 && other.starts_with(name) && other.ends_with('_'));
  }
};

// The first that fits counts.
struct ClassTable {
  using enum OpClass;
  static constexpr Pattern patterns[] = {
      {profiled_steps, idle},

      {"aten::conv*", convolution},
      {"aten::_convolution*", convolution},
      {"aten::cudnn_convolution*", convolution},
      {"aten::mkldnn_convolution*", convolution},
      {"aten::slow_conv*", convolution},
      {"aten::_slow_conv*", convolution},
      {"aten::thnn_conv*", convolution},
      {"aten::_conv_depthwise2d*", convolution},
      {"aten::_nnpack_spatial_convolution", convolution},
      {"millrace::convolution_by_columns*", convolution},

      {"aten::scaled_dot_product_attention", attention},
      {"aten::_scaled_dot_product*", attention},
      {"aten::_fused_sdp_choice", attention},
      {"aten::_flash_attention*", attention},
      {"aten::_efficient_attention*", attention},
      {"aten::_cudnn_attention*", attention},
      {"aten::_softmax*", attention},
      {"millrace::small_attention*", attention},

      {"aten::linear", matrix_product},
      {"aten::linear_backward", matrix_product},
      {"aten::mkldnn_linear*", matrix_product},
      {"aten::matmul", matrix_product},
      {"aten::mm", matrix_product},
      {"aten::addmm", matrix_product},
      {"aten::_addmm_activation", matrix_product},
      {"aten::bmm", matrix_product},
      {"aten::baddbmm", matrix_product},
      {"aten::mv", matrix_product},
      {"aten::addmv", matrix_product},

      {"aten::group_norm", normalisation},
      {"aten::native_group_norm*", normalisation},
      {"aten::layer_norm", normalisation},
      {"aten::native_layer_norm*", normalisation},
      {"millrace::group_norm_silu*", normalisation},
      {"millrace::layer_norm*", normalisation},

      {"aten::_fused_adamw*", optimizer},
      {"aten::linalg_vector_norm", optimizer},
      {"millrace::gradient_square_sum", optimizer},
      {"millrace::square_sum", optimizer},
      {"millrace::adamw*", optimizer},
      {"millrace::ema_update", optimizer},

      {"millrace::sum_gradients", communication},
      {"millrace::gather_parameters", communication},
      {"millrace::share_with_replicas", communication},
      {"millrace::wait_for_sums", communication},
      {"millrace::all_reduce_gradient_norm", communication},
      {"nccl*", communication},  // kernels

      {"millrace::sum_gradient", copy},  // the first of a step is one
      {"aten::copy", copy},
      {"aten::_to_copy", copy},
      {"aten::clone", copy},
      {"aten::contiguous", copy},
      {"aten::_reshape_copy", copy},
      {"aten::_foreach_copy", copy},
      {"aten::cat", copy},
      {"aten::stack", copy},
      {"aten::repeat", copy},
      {"aten::constant_pad_nd", copy},
      {"aten::fill", copy},
      {"aten::zero", copy},
      {"Memcpy*", copy},  // on a GPU
      {"Memset*", copy},

      {"aten::add", pointwise},
      {"aten::_foreach_add", pointwise},
      {"aten::sub", pointwise},
      {"aten::rsub", pointwise},
      {"aten::mul", pointwise},
      {"aten::div", pointwise},
      {"aten::neg", pointwise},
      {"aten::abs", pointwise},
      {"aten::pow", pointwise},
      {"aten::square", pointwise},
      {"aten::sqrt", pointwise},
      {"aten::rsqrt", pointwise},
      {"aten::exp", pointwise},
      {"aten::log", pointwise},
      {"aten::sin", pointwise},
      {"aten::cos", pointwise},
      {"aten::clamp*", pointwise},
      {"aten::minimum", pointwise},
      {"aten::maximum", pointwise},
      {"aten::where", pointwise},
      {"aten::masked_fill", pointwise},
      {"aten::lerp", pointwise},
      {"aten::addcmul", pointwise},
      {"aten::addcdiv", pointwise},
      {"aten::silu*", pointwise},
      {"aten::gelu*", pointwise},
      {"aten::sigmoid*", pointwise},
      {"aten::tanh*", pointwise},
      {"aten::mish*", pointwise},
      {"aten::relu", pointwise},
      {"aten::threshold_backward", pointwise},
      {"aten::native_dropout*", pointwise},
      {"aten::upsample*", pointwise},
      {"aten::mse_loss*", pointwise},
      {"aten::sum", pointwise},
      {"aten::mean", pointwise},
      {"aten::embedding*", pointwise},
      {"aten::gather", pointwise},
      {"aten::index", pointwise},
      {"aten::index_select", pointwise},
      {"millrace::geglu*", pointwise},
      {"millrace::add_bias", pointwise},
      {"millrace::bias_gradient", pointwise},
      {"millrace::unit_normals", pointwise},
  };
};

}  // namespace

OpClass class_of(std::string_view name) {
  for (const auto& pattern : ClassTable::patterns)
    if (pattern.fits(name)) return pattern.op_class;
  return OpClass::other;
}

}  // namespace millrace
