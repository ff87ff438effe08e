// bench layers: each distinct convolution, matrix product and attention of the U-Net alone, forward and gradients.
#include <torch/autograd.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "bench/bench.h"
#include "bench/layers.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/attention.h"
#include "millrace/nn/convolution.h"
#include "millrace/nn/device.h"
#include "millrace/nn/layers.h"

namespace millrace {

namespace {

// One layer with random operands.
class LayerRun {
 public:
  LayerRun(const LayerShape& shape, torch::Device device, torch::Dtype dtype, bool channels_last) : shape_(shape) {
    torch::manual_seed(0);  // every setting computes with the same numbers
    const auto random = [&](at::IntArrayRef sizes) {
      const auto numbers = torch::randn(sizes, torch::device(device).dtype(dtype));
      return numbers.contiguous(channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous);
    };
    if (shape.kind == LayerKind::attention) {
      for (const auto& sizes : {shape.input, shape.second, shape.second})
        operands_.push_back(random({sizes[0], sizes[2], sizes[1] * sizes[3]}));
    } else {
      operands_ = {random(shape.input), random(shape.second)};
      if (shape.with_bias) operands_.push_back(torch::randn({shape.second[0]}, operands_[0].options()));
    }
    for (auto& operand : operands_) operand.requires_grad_();
    y_ = forward();
    y_grad_ = torch::randn(y_.sizes(), operands_[0].options()).contiguous(y_.suggest_memory_format());
  }

  std::vector<torch::Tensor> run(LayerPass pass) const {
    if (pass == LayerPass::forward) return {forward()};
    return torch::autograd::grad({y_}, wanted(pass), {y_grad_}, /*retain_graph=*/true);
  }

 private:
  torch::Tensor forward() const {
    const auto bias = shape_.with_bias ? operands_[2] : torch::Tensor();
    switch (shape_.kind) {
      case LayerKind::convolution:
        return nn::conv2d(operands_[0], operands_[1], bias, shape_.stride, shape_.padding);
      case LayerKind::matrix_product:
        return at::linear(operands_[0], operands_[1], bias);
      case LayerKind::attention:
        return nn::attention(operands_[0], operands_[1], operands_[2], shape_.input[1]);
    }
    return {};
  }
  std::vector<torch::Tensor> wanted(LayerPass pass) const {
    if (pass == LayerPass::input_gradient) return {operands_[0]};
    if (pass == LayerPass::weight_gradient) return {operands_.begin() + 1, operands_.end()};
    return operands_;
  }

  LayerShape shape_;
  std::vector<torch::Tensor> operands_;
  torch::Tensor y_, y_grad_;
};

// How much of a tensor's norm rounding may be: sums of thousands of numbers, in another order.
double tolerance_of(torch::Dtype dtype) {
  return dtype == torch::kFloat32 ? 1e-4 : 0.02;
}

class LayerBench {
 public:
  LayerBench(const BenchConfig& config, torch::Device device)
      : device_(device), dtype_(parse_dtype(config.model.dtype, device)) {
    if (config.model.channels_last.value.value_or(nn::prefers_channels_last(device, dtype_)))
      table_.own = Layout::channels_last;
  }

  void add(const LayerShape& shape, int calls) {
    const std::size_t layouts = shape.kind == LayerKind::convolution ? 2 : 1;
    for (const auto pass : passes_of(shape))
      table_.rows.push_back({shape, pass, calls, std::vector<std::vector<double>>(layouts)});
  }

  // The layouts give the same numbers.
  void check() const {
    for (const auto& row : table_.rows) {
      std::vector<torch::Tensor> first;
      for (std::size_t i = 0; i < row.ms_of_calls.size(); ++i) {
        const auto results = prepare(row, i).run(row.pass);
        if (first.empty()) first = results;
        for (std::size_t k = 0; k < results.size(); ++k) expect_alike(results[k], first[k], row);
      }
    }
  }

  // One run; ms of a step's calls in training's own layout, by kinds.
  std::map<LayerKind, double> measure() {
    std::map<LayerKind, double> sums;
    for (auto& row : table_.rows) {
      for (std::size_t i = 0; i < row.ms_of_calls.size(); ++i) row.ms_of_calls[i].push_back(time(row, i));
      sums[row.shape.kind] += row.calls * row.own_ms(table_.own).back();
    }
    return sums;
  }

  double flops_of_step() const {
    double flops = 0;
    for (const auto& row : table_.rows) flops += row.calls * flops_of(row.shape, row.pass);
    return flops;
  }

  const LayerTable& table() const { return table_; }

 private:
  // For LayerTable::Row::ms_of_calls[layout].
  LayerRun prepare(const LayerTable::Row& row, std::size_t layout) const {
    return {row.shape, device_, dtype_, layout == static_cast<std::size_t>(Layout::channels_last)};
  }

  // ms of one call, out of enough of them for the clock.
  double time(const LayerTable::Row& row, std::size_t layout) const {
    constexpr double least_seconds = 0.01;
    constexpr int most_calls = 200;
    const auto layer = prepare(row, layout);
    layer.run(row.pass);
    synchronize(device_);
    Stopwatch watch;
    layer.run(row.pass);
    synchronize(device_);
    const int calls = static_cast<int>(std::clamp(std::ceil(least_seconds / watch.lap()), 1.0, double{most_calls}));
    for (int i = 0; i < calls; ++i) layer.run(row.pass);
    synchronize(device_);
    return 1000 * watch.lap() / calls;
  }

  void expect_alike(const torch::Tensor& result, const torch::Tensor& other, const LayerTable::Row& row) const {
    const auto difference = (result.to(torch::kFloat32) - other.to(torch::kFloat32)).norm().item<double>();
    ensure(difference <= tolerance_of(dtype_) * other.to(torch::kFloat32).norm().item<double>(),
           fmt::format("bench layers: {} gives other numbers in another layout", name_of(row.shape)));
  }

  torch::Device device_;
  torch::Dtype dtype_;
  LayerTable table_;
};

// In types in which all are LibTorch's (layers_of).
std::map<LayerShape, int> layers_of_unet(const BenchConfig& c, torch::Device device) {
  const auto folder = PipelineFolder::open(c.model.pipeline);
  const auto vae = AutoencoderKLConfig::from_json(folder.config("vae"));
  auto unet = make_unet(folder.config("unet"), /*seed=*/0);
  const auto dtype = device.is_cuda() ? torch::kBFloat16 : torch::kFloat64;
  nn::place(*unet, device, dtype, c.model.channels_last.value);
  const auto side = vae.latent_side(c.transform.resolution);
  const auto width = CLIPTextConfig::from_json(folder.config("text_encoder")).hidden_size;
  const auto options = torch::device(device).dtype(dtype);
  const auto latents = torch::zeros({c.micro_batch(), vae.latent_channels, side, side}, options);
  const auto text = torch::zeros({c.micro_batch(), token_count, width}, options);
  return layers_of([&] { unet(latents, torch::zeros({c.micro_batch()}, torch::kInt64).to(device), text); });
}

}  // namespace

BenchResult bench_layers(const BenchConfig& c) {
  const auto device = resolve_device(c.run.device);
  LayerBench bench(c, device);
  for (const auto& [shape, calls] : layers_of_unet(c, device)) bench.add(shape, calls);

  BenchResult figures("layers");
  repeat(c, Group(), [&](bool measured) {
    if (!measured) return bench.check();
    auto ms = bench.measure();
    const double sum = ms[LayerKind::convolution] + ms[LayerKind::matrix_product] + ms[LayerKind::attention];
    figures.add("all", "ms", sum);
    figures.add("rate", "GFLOP/s", 1e-6 * bench.flops_of_step() / sum);
    figures.add("convolution", "ms", ms[LayerKind::convolution]);
    figures.add("matrix product", "ms", ms[LayerKind::matrix_product]);
    figures.add("attention", "ms", ms[LayerKind::attention]);
  });
  figures.add(bench.table());
  return figures;
}

}  // namespace millrace
