#include "millrace/produce/encoder_networks.h"

#include <optional>
#include <string>

#include "millrace/comm/agree.h"
#include "millrace/nn/weights.h"

namespace millrace {
namespace {

// "BFloat16, 167335342 bytes"
std::string kind_of(const torch::nn::Module& network, torch::Dtype dtype) {
  std::size_t bytes = 0;
  for (const auto& [name, weight] : weights_of(network)) bytes += weight.nbytes();
  return fmt::format("{}, {} bytes", torch::toString(dtype), bytes);
}

// Messages of other lengths would be garbage, without an error.
void refuse_other_kind(const Group& ranks, const std::string& own) {
  const auto first = ranks.broadcast(own);
  on_all(ranks, [&] {
    if (own != first)
      throw Error(
          Exit::usage, fmt::format("an encoder is {} here, and {} on the first rank that has it", own, first),
          "set encode.dtype where auto is another one on GPUs than on CPUs; all ranks must have one model.pipeline");
  });
}

// The same names in the same order on all ranks. Who fails goes on with the messages: others wait for them.
void take_from_first(const Group& ranks, const torch::nn::Module& network) {
  const bool is_first = ranks.is_root();
  std::optional<Error> error;
  const auto copy = [&](const torch::Tensor& to, const torch::Tensor& from) {
    try {
      if (!error) to.copy_(from);
    } catch (...) {
      error = present_error();
    }
  };
  for (const auto& [name, weight] : weights_of(network)) {
    const auto values = torch::empty(weight.sizes(), weight.scalar_type());
    if (is_first) copy(values, weight);
    ranks.broadcast({static_cast<std::byte*>(values.data_ptr()), values.nbytes()}, 0);
    if (!is_first) copy(weight, values);
  }
  agree(ranks, error);
}

template <class Network, class Read, class Make>
Network read_once(const Group& ranks, torch::Dtype dtype, const Read& read, const Make& make) {
  if (ranks.size() == 1) return read();
  const auto network = on_all(ranks, [&] { return std::optional(ranks.is_root() ? read() : make()); });
  refuse_other_kind(ranks, kind_of(**network, dtype));
  take_from_first(ranks, **network);
  return *network;
}

}  // namespace

EncoderNetworks load_encoders(const Group& ranks, const PipelineFolder& pipeline, bool with_text, torch::Device device,
                              torch::Dtype dtype) {
  EncoderNetworks networks;
  networks.vae = read_once<AutoencoderKL>(
      ranks, dtype, [&] { return pipeline.load_vae(device, dtype); }, [&] { return pipeline.make_vae(device, dtype); });
  if (with_text) networks.text = load_text_encoder(ranks, pipeline, device, dtype);
  return networks;
}

CLIPTextModel load_text_encoder(const Group& ranks, const PipelineFolder& pipeline, torch::Device device,
                                torch::Dtype dtype) {
  return read_once<CLIPTextModel>(
      ranks, dtype, [&] { return pipeline.load_text_encoder(device, dtype); },
      [&] { return pipeline.make_text_encoder(device, dtype); });
}

}  // namespace millrace
