#include "millrace/models/unet_blocks.h"

namespace millrace {

namespace {

ResnetBlock2D make_unet_resnet(const UNetBlockOptions& options, std::int64_t in, std::int64_t out) {
  ResnetOptions resnet = options.resnet;
  resnet.in_channels = in;
  resnet.out_channels = out;
  return ResnetBlock2D(resnet);
}

// The transformers of a block with `count` of them, or null.
nn::List<Transformer2DModel> make_transformers(const UNetBlockOptions& options, std::int64_t channels,
                                               std::size_t count) {
  if (!options.transformer) return nullptr;
  auto list = nn::make_list<Transformer2DModel>();
  for (std::size_t i = 0; i < count; ++i) {
    TransformerOptions transformer = *options.transformer;
    transformer.layers = options.transformer_layers.at(i);
    list->add(Transformer2DModel(channels, transformer));
  }
  return list;
}

}  // namespace

DownBlock2DImpl::DownBlock2DImpl(const UNetBlockOptions& options, std::int64_t in_channels, std::int64_t out_channels,
                                 std::int64_t layers, std::optional<std::int64_t> downsample_padding)
    : attentions(make_transformers(options, out_channels, static_cast<std::size_t>(layers))),
      resnets(nn::make_list<ResnetBlock2D>()) {
  if (attentions) register_module("attentions", attentions);
  register_module("resnets", resnets);
  for (std::int64_t i = 0; i < layers; ++i) {
    resnets->add(make_unet_resnet(options, i == 0 ? in_channels : out_channels, out_channels));
  }
  if (!downsample_padding) return;
  downsamplers = register_module("downsamplers", nn::make_list<Downsample2D>());
  downsamplers->add(Downsample2D(out_channels, *downsample_padding));
}

std::vector<torch::Tensor> DownBlock2DImpl::forward(torch::Tensor x, const torch::Tensor& time,
                                                    const torch::Tensor& context) {
  std::vector<torch::Tensor> maps;
  for (std::size_t i = 0; i < resnets->size(); ++i) {
    x = (*resnets)[i](x, time);
    if (attentions) x = (*attentions)[i](x, context);
    maps.push_back(x);
  }
  if (downsamplers) maps.push_back((*downsamplers)[0](x));
  return maps;
}

UNetMidBlock2DImpl::UNetMidBlock2DImpl(const UNetBlockOptions& options, std::int64_t channels)
    : attentions(make_transformers(options, channels, 1)), resnets(nn::make_list<ResnetBlock2D>()) {
  if (attentions) register_module("attentions", attentions);
  register_module("resnets", resnets);
  resnets->add(make_unet_resnet(options, channels, channels));
  if (attentions) resnets->add(make_unet_resnet(options, channels, channels));
}

torch::Tensor UNetMidBlock2DImpl::forward(torch::Tensor x, const torch::Tensor& time, const torch::Tensor& context) {
  x = (*resnets)[0](x, time);
  if (!attentions) return x;
  return (*resnets)[1]((*attentions)[0](x, context), time);
}

UpBlock2DImpl::UpBlock2DImpl(const UNetBlockOptions& options, std::int64_t in_channels, std::int64_t out_channels,
                             const std::vector<std::int64_t>& skip_channels, bool upsample)
    : attentions(make_transformers(options, out_channels, skip_channels.size())),
      resnets(nn::make_list<ResnetBlock2D>()) {
  if (attentions) register_module("attentions", attentions);
  register_module("resnets", resnets);
  for (std::size_t i = 0; i < skip_channels.size(); ++i) {
    resnets->add(make_unet_resnet(options, (i == 0 ? in_channels : out_channels) + skip_channels[i], out_channels));
  }
  if (!upsample) return;
  upsamplers = register_module("upsamplers", nn::make_list<Upsample2D>());
  upsamplers->add(Upsample2D(out_channels));
}

torch::Tensor UpBlock2DImpl::forward(torch::Tensor x, std::vector<torch::Tensor> skips, const torch::Tensor& time,
                                     const torch::Tensor& context, std::optional<Extent> size) {
  for (std::size_t i = 0; i < resnets->size(); ++i) {
    x = (*resnets)[i](at::cat({x, skips.back()}, 1), time);
    skips.pop_back();
    if (attentions) x = (*attentions)[i](x, context);
  }
  return upsamplers ? (*upsamplers)[0](x, size) : x;
}

}  // namespace millrace
