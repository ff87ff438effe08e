#include "millrace/models/initialize.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/core/philox.h"
#include "millrace/core/philox_math.h"

namespace millrace {

namespace {

// Numbers per task: a whole number of Philox blocks.
constexpr std::int64_t chunk_numbers = 1 << 16;

std::int64_t fan_in(const std::vector<std::int64_t>& weight_shape) {
  return c10::multiply_integers(at::IntArrayRef(weight_shape).slice(1));
}

// A bias belongs to the weight beside it.
std::string weight_beside(const std::string& bias) {
  constexpr std::string_view suffix = "bias";
  ensure(bias.ends_with(suffix), "a parameter is a weight or a bias");
  return bias.substr(0, bias.size() - suffix.size()) + "weight";
}

void fill_uniform(const RngKey& key, double bound, std::span<float> out, std::uint32_t first) {
  const float scale = static_cast<float>(2 * bound), offset = static_cast<float>(-bound);
  for (std::size_t i = 0; i < out.size(); i += 4) {
    const PhiloxCounter words = random_block(key, Purpose::weights, first / 4 + static_cast<std::uint32_t>(i / 4));
    const std::size_t count = std::min<std::size_t>(4, out.size() - i);
    for (std::size_t j = 0; j < count; ++j) out[i + j] = philox_math::unit_interval(words[j]) * scale + offset;
  }
}

void fill_scaled_normal(const RngKey& key, double std, std::span<float> out, std::uint32_t first) {
  fill_normal(key, Purpose::weights, out, first);
  for (float& x : out) x *= static_cast<float>(std);
}

void fill(const at::Tensor& tensor, const InitRule& rule, const RngKey& key) {
  if (rule.kind == InitRule::Kind::constant) {
    tensor.fill_(rule.scale);
    return;
  }
  ensure(tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
         "weights are made on the CPU in fp32");
  const std::span<float> numbers(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()));
  at::parallel_for(0, (tensor.numel() + chunk_numbers - 1) / chunk_numbers, 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     const auto first = static_cast<std::size_t>(begin * chunk_numbers);
                     const auto last = std::min(static_cast<std::size_t>(end * chunk_numbers), numbers.size());
                     const auto chunk = numbers.subspan(first, last - first);
                     if (rule.kind == InitRule::Kind::uniform) {
                       fill_uniform(key, rule.scale, chunk, static_cast<std::uint32_t>(first));
                     } else {
                       fill_scaled_normal(key, rule.scale, chunk, static_cast<std::uint32_t>(first));
                     }
                   });
}

}  // namespace

Shapes parameter_shapes(const torch::nn::Module& module) {
  Shapes shapes;
  for (const auto& parameter : module.named_parameters()) shapes[parameter.key()] = parameter.value().sizes().vec();
  return shapes;
}

InitRules plan_pytorch_init(const Shapes& shapes) {
  InitRules rules;
  for (const auto& [name, shape] : shapes) {
    const bool is_weight = name.ends_with("weight");
    const auto& weight_shape = is_weight ? shape : shapes.at(weight_beside(name));
    if (weight_shape.size() == 1) {  // a norm layer
      rules[name] = {InitRule::Kind::constant, is_weight ? 1.0 : 0.0};
    } else {  // kaiming_uniform(a = sqrt(5)), and the same bound for the bias
      rules[name] = {InitRule::Kind::uniform, 1 / std::sqrt(static_cast<double>(fan_in(weight_shape)))};
    }
  }
  return rules;
}

InitRules with_zero_outputs(InitRules rules) {
  const auto ends_a_block = [](std::string_view name) {
    name.remove_suffix(name.size() - name.rfind('.'));
    return name == "conv_out" || (name.find("resnets.") != name.npos && name.ends_with(".conv2")) ||
           (name.find("attentions.") != name.npos && name.ends_with(".proj_out"));
  };
  for (auto& [name, rule] : rules)
    if (ends_a_block(name)) rule = {InitRule::Kind::constant, 0};
  return rules;
}

InitRules plan_clip_init(const Shapes& shapes, const nlohmann::json& config, double token_embedding_std) {
  const double hidden = config.at("hidden_size"), layers = config.at("num_hidden_layers");
  const double factor = config.value("initializer_factor", 1.0);
  const double embedding = 0.02 * factor;
  const double output = factor / std::sqrt(hidden);
  const double input = output / std::sqrt(2 * layers);  // smaller in deep models: their branches add up
  const std::vector<std::pair<std::string_view, double>> weight_std = {
      {"token_embedding.weight", token_embedding_std > 0 ? token_embedding_std : embedding},
      {"position_embedding.weight", embedding},
      {"q_proj.weight", input},
      {"k_proj.weight", input},
      {"v_proj.weight", input},
      {"out_proj.weight", output},
      {"fc1.weight", factor / std::sqrt(2 * hidden)},
      {"fc2.weight", input},
  };
  InitRules rules;
  for (const auto& [name, shape] : shapes) {
    const auto found = std::ranges::find_if(weight_std, [&](const auto& entry) { return name.ends_with(entry.first); });
    if (found != weight_std.end()) {
      rules[name] = {InitRule::Kind::normal, found->second};
    } else {
      ensure(shape.size() == 1, "every matrix of the text encoder has a rule");
      rules[name] = {InitRule::Kind::constant, name.ends_with("weight") ? 1.0 : 0.0};
    }
  }
  return rules;
}

void initialize(torch::nn::Module& module, const InitRules& rules, std::uint64_t seed) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : module.named_parameters()) {
    fill(parameter.value(), rules.at(parameter.key()), {.seed = seed, .sample = hash64(parameter.key())});
  }
}

UNet2DConditionModel make_unet(const nlohmann::json& config, std::uint64_t seed) {
  UNet2DConditionModel unet(UNet2DConditionConfig::from_json(config));
  initialize(*unet, plan_pytorch_init(parameter_shapes(*unet)), seed);
  return unet;
}

AutoencoderKL make_vae(const nlohmann::json& config, std::uint64_t seed) {
  AutoencoderKL vae(AutoencoderKLConfig::from_json(config));
  initialize(*vae, plan_pytorch_init(parameter_shapes(*vae)), seed);
  return vae;
}

CLIPTextModel make_text_encoder(const nlohmann::json& config, std::uint64_t seed, double token_embedding_std) {
  CLIPTextModel text(CLIPTextConfig::from_json(config));
  initialize(*text, plan_clip_init(parameter_shapes(*text), config, token_embedding_std), seed);
  return text;
}

}  // namespace millrace
