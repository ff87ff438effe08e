#include "cpu/group_norm.h"

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "cpu/per_processor.h"
#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/nn/fused.h"

namespace millrace::nn {

namespace {

constexpr std::int64_t strip_pixels = 128;  // sums within a strip are floats, those of strips are added as doubles

struct NormedImages {
  std::int64_t batch, pixels, channels, groups;

  explicit NormedImages(const torch::Tensor& x, std::int64_t groups)
      : batch(x.size(0)), pixels(x.size(2) * x.size(3)), channels(x.size(1)), groups(groups) {}
  std::int64_t strips() const { return (pixels + strip_pixels - 1) / strip_pixels; }
  std::int64_t channels_per_group() const { return channels / groups; }
  double group_elements() const { return static_cast<double>(channels_per_group() * pixels); }
  // Of an element of (B, C); of a strip in x.
  std::int64_t at(std::int64_t image, std::int64_t channel) const { return image * channels + channel; }
  std::int64_t offset(std::int64_t image, std::int64_t strip) const {
    return (image * pixels + strip * strip_pixels) * channels;
  }
  PixelStrip strip(std::int64_t i) const { return {std::min(strip_pixels, pixels - i * strip_pixels), channels}; }
};

// Sums of each channel over strips: (B, strips, kinds, C).
class StripSums {
 public:
  StripSums(const NormedImages& images, std::int64_t kinds)
      : images_(images),
        kinds_(kinds),
        memory_(at::empty({images.batch, images.strips(), kinds, images.channels})),
        sums_(memory_.mutable_data_ptr<float>()) {}

  // (kinds, C) of a strip.
  float* of(std::int64_t image, std::int64_t strip) { return sums_ + place(image, strip); }
  // The same, all 0.
  float* start(std::int64_t image, std::int64_t strip) {
    float* const first = of(image, strip);
    std::fill_n(first, kinds_ * images_.channels, 0.0f);
    return first;
  }
  float at(std::int64_t kind, std::int64_t image, std::int64_t strip, std::int64_t channel) const {
    return sums_[place(image, strip) + kind * images_.channels + channel];
  }
  double over_image(std::int64_t kind, std::int64_t image, std::int64_t channel) const {
    double sum = 0;
    for (std::int64_t strip = 0; strip < images_.strips(); ++strip) sum += at(kind, image, strip, channel);
    return sum;
  }

 private:
  std::int64_t place(std::int64_t image, std::int64_t strip) const {
    return (image * images_.strips() + strip) * kinds_ * images_.channels;
  }
  NormedImages images_;
  std::int64_t kinds_;
  torch::Tensor memory_;
  float* sums_;
};

// Of all pixels of a channel: their mean, and the squares of what they are away from it.
struct Moments {
  double mean, squares;
};

// `strips`: the three kinds that GroupNormKernel::find_moments makes. First all of them get the origin of the first.
Moments moments_of(const NormedImages& images, const StripSums& strips, std::int64_t image, std::int64_t channel) {
  const double origin = strips.at(0, image, 0, channel);
  double sum = 0, squares = 0;
  for (std::int64_t strip = 0; strip < images.strips(); ++strip) {
    const double pixels = static_cast<double>(images.strip(strip).pixels);
    const double shift = strips.at(0, image, strip, channel) - origin;
    const double strip_sum = strips.at(1, image, strip, channel), all_shifted = pixels * shift;
    sum += strip_sum + all_shifted;
    squares += strips.at(2, image, strip, channel) + shift * (2 * strip_sum + all_shifted);
  }
  const double mean = sum / static_cast<double>(images.pixels);
  return {origin + mean, squares - sum * mean};
}

// first(image, strip) for all strips of an image, fold(image, group) for all groups, second(image, strip): image by
// image, while it lies in the caches, or strip by strip where the images do not divide among the threads. Each strip
// and each group is computed by one thread alone, so the result does not depend on their number.
template <class First, class Fold, class Second>
void in_two_passes(const NormedImages& images, const First& first, const Fold& fold, const Second& second) {
  const std::int64_t strips = images.strips();
  if (images.batch % at::get_num_threads() == 0) {
    at::parallel_for(0, images.batch, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t image = begin; image < end; ++image) {
        for (std::int64_t strip = 0; strip < strips; ++strip) first(image, strip);
        for (std::int64_t group = 0; group < images.groups; ++group) fold(image, group);
        for (std::int64_t strip = 0; strip < strips; ++strip) second(image, strip);
      }
    });
    return;
  }
  // Of all images, so many at least on one thread.
  const auto over_parts = [&](std::int64_t parts, std::int64_t at_least, const auto& work) {
    at::parallel_for(0, images.batch * parts, at_least, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) work(i / parts, i % parts);
    });
  };
  over_parts(strips, 1, first);
  over_parts(images.groups, at::internal::GRAIN_SIZE / (strips * images.channels_per_group()) + 1, fold);
  over_parts(strips, 1, second);
}

struct GroupNormOfPixels : torch::autograd::Function<GroupNormOfPixels> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const std::optional<torch::Tensor>& time, const torch::Tensor& weight,
                               const torch::Tensor& bias, std::int64_t groups, double eps, bool with_silu) {
    const kernels::OpScope scope("millrace::group_norm_silu");
    const NormedImages images(x, groups);
    const auto& kernel = best_kernels(images.channels).group_norm;
    const auto y = at::empty_like(x, torch::MemoryFormat::ChannelsLast);
    const auto shift = at::empty({images.batch, images.channels}), scale = at::empty_like(shift);
    const auto rstd = at::empty({images.batch, groups});
    const auto shift_by = time ? time->contiguous() : at::zeros_like(shift);
    StripSums sums(images, 3);

    const auto* const in = x.const_data_ptr<float>();
    const auto *const added = shift_by.const_data_ptr<float>(), *const gamma = weight.const_data_ptr<float>(),
                      *const beta = bias.const_data_ptr<float>();
    auto *const out = y.mutable_data_ptr<float>(), *const shifts = shift.mutable_data_ptr<float>(),
                *const scales = scale.mutable_data_ptr<float>(), *const rstds = rstd.mutable_data_ptr<float>();

    const auto find_moments = [&](std::int64_t image, std::int64_t strip) {
      kernel.find_moments(images.strip(strip), in + images.offset(image, strip), sums.of(image, strip));
    };
    const auto find_norm = [&](std::int64_t image, std::int64_t group) {
      std::vector<Moments> channels(images.channels_per_group());
      const std::int64_t first = group * images.channels_per_group(), end = first + images.channels_per_group();
      double mean = 0, squares = 0;
      for (std::int64_t c = first; c < end; ++c) {
        channels[c - first] = moments_of(images, sums, image, c);
        channels[c - first].mean += added[images.at(image, c)];
        mean += channels[c - first].mean;
      }
      mean /= static_cast<double>(images.channels_per_group());
      for (const auto& channel : channels) {
        const double from_mean = channel.mean - mean;
        squares += channel.squares + static_cast<double>(images.pixels) * from_mean * from_mean;
      }
      if (squares < 0) squares = 0;  // by rounding; NaN stays
      const double r = 1 / std::sqrt(squares / images.group_elements() + eps);
      rstds[image * groups + group] = static_cast<float>(r);
      for (std::int64_t c = first; c < end; ++c) {
        shifts[images.at(image, c)] = static_cast<float>(mean - added[images.at(image, c)]);
        scales[images.at(image, c)] = static_cast<float>(r * gamma[c]);
      }
    };
    const auto normalize = [&](std::int64_t image, std::int64_t strip) {
      kernel.normalize(images.strip(strip), in + images.offset(image, strip),
                       {shifts + images.at(image, 0), scales + images.at(image, 0), beta}, with_silu,
                       out + images.offset(image, strip));
    };
    in_two_passes(images, find_moments, find_norm, normalize);

    context->save_for_backward({x, bias, shift, scale, rstd});
    context->saved_data["with_time"] = time.has_value();
    context->saved_data["with_silu"] = with_silu;
    return y;
  }

  // With z = (x - shift) rstd and n elements in a group:
  // dx = rstd (gamma dv - sum of (gamma dv) / n - z sum of (gamma dv z) / n).
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const kernels::OpScope scope("millrace::group_norm_silu_backward");
    ensure(!at::GradMode::is_enabled(), "group norm of pixels has no second derivative");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &bias = saved[1], &shift = saved[2], &scale = saved[3], &rstd = saved[4];
    const bool with_silu = context->saved_data["with_silu"].toBool();
    const std::int64_t groups = rstd.size(1);
    const NormedImages images(x, groups);
    const auto& kernel = best_kernels(images.channels).group_norm;
    const auto y_grad = output_grads[0].contiguous(torch::MemoryFormat::ChannelsLast);
    const auto x_grad = at::empty_like(x, torch::MemoryFormat::ChannelsLast);
    const auto time_grad = at::empty_like(shift), weight_grads = at::empty_like(shift),
               bias_grads = at::empty_like(shift);
    const auto x_factor = at::empty_like(shift), offset = at::empty_like(shift);
    StripSums sums(images, 3);

    const auto *const in = x.const_data_ptr<float>(), *const out_grad = y_grad.const_data_ptr<float>();
    const auto *const scales = scale.const_data_ptr<float>(), *const rstds = rstd.const_data_ptr<float>();
    auto *const grad = x_grad.mutable_data_ptr<float>(), *const x_factors = x_factor.mutable_data_ptr<float>(),
                *const offsets = offset.mutable_data_ptr<float>();
    auto *const time_sums = time_grad.mutable_data_ptr<float>(),
                *const weight_sums = weight_grads.mutable_data_ptr<float>(),
                *const bias_sums = bias_grads.mutable_data_ptr<float>();
    const auto norm_of = [&](std::int64_t image) {
      return ChannelNorm{shift.const_data_ptr<float>() + images.at(image, 0), scales + images.at(image, 0),
                         bias.const_data_ptr<float>()};
    };

    const auto add_sums = [&](std::int64_t image, std::int64_t strip) {
      const auto at = images.offset(image, strip);
      kernel.add_gradient_sums(images.strip(strip), in + at, out_grad + at, norm_of(image), with_silu, grad + at,
                               sums.start(image, strip));
    };
    const auto find_factors = [&](std::int64_t image, std::int64_t group) {
      const std::int64_t first = group * images.channels_per_group(), end = first + images.channels_per_group();
      const double r = rstds[image * groups + group];
      double sum = 0, product = 0;  // of gamma rstd dv, and of that times x - shift
      for (std::int64_t c = first; c < end; ++c) {
        const double v_sum = sums.over_image(0, image, c), v_product = sums.over_image(1, image, c);
        sum += scales[images.at(image, c)] * v_sum;
        product += scales[images.at(image, c)] * v_product;
        bias_sums[images.at(image, c)] = static_cast<float>(v_sum);
        weight_sums[images.at(image, c)] = static_cast<float>(r * v_product);
      }
      const double all_offset = -sum / images.group_elements();
      const double all_factor = -r * r * product / images.group_elements();
      for (std::int64_t c = first; c < end; ++c) {
        offsets[images.at(image, c)] = static_cast<float>(all_offset);
        x_factors[images.at(image, c)] = static_cast<float>(all_factor);
        time_sums[images.at(image, c)] = static_cast<float>(scales[images.at(image, c)] * sums.over_image(0, image, c) +
                                                            all_factor * sums.over_image(2, image, c) +
                                                            all_offset * static_cast<double>(images.pixels));
      }
    };
    const auto finish = [&](std::int64_t image, std::int64_t strip) {
      const auto at = images.offset(image, strip);
      kernel.finish_gradient(images.strip(strip), in + at, norm_of(image), x_factors + images.at(image, 0),
                             offsets + images.at(image, 0), grad + at);
    };
    in_two_passes(images, add_sums, find_factors, finish);

    const bool with_time = context->saved_data["with_time"].toBool();
    return {x_grad, with_time ? time_grad : torch::Tensor(), weight_grads.sum(0), bias_grads.sum(0), {}, {}, {}};
  }
};

}  // namespace

bool suits_group_norm_kernel(const torch::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == torch::kFloat32 && x.dim() == 4 && x.numel() > 0 &&
         own_kernels_take(torch::kCPU, x.size(1)) && x.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

torch::Tensor group_norm_of_pixels(const torch::Tensor& x, const torch::Tensor& time, const torch::Tensor& weight,
                                   const torch::Tensor& bias, std::int64_t groups, double eps, bool with_silu) {
  const std::int64_t channels = x.size(1);
  TORCH_CHECK(groups > 0 && channels % groups == 0, "groups is ", groups, ", which does not divide ", channels,
              " channels");
  TORCH_CHECK(!time.defined() || time.sizes() == at::IntArrayRef({x.size(0), channels}), "time has shape ",
              time.sizes(), ", x ", x.sizes());
  for (const auto& parameter : {weight, bias})
    TORCH_CHECK(parameter.dim() == 1 && parameter.size(0) == channels && parameter.is_contiguous(),
                "weight and bias are not one number for each of ", channels, " channels: ", parameter.sizes());
  return GroupNormOfPixels::apply(x, time.defined() ? std::optional(time) : std::nullopt, weight, bias, groups, eps,
                                  with_silu);
}

}  // namespace millrace::nn
