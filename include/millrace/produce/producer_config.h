#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/config/config.h"
#include "millrace/dataset/data_config.h"
#include "millrace/encode/encoder.h"
#include "millrace/image/transform.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

struct RunConfig {
  config::Required dir;
  std::uint64_t seed = 420;
  std::string device = "auto";
  bool deterministic = false;

  void describe(config::Section& section);
};

struct ModelConfig {
  enum class Init { random, zero_out, pretrained };
  config::Required pipeline;
  struct Unet {
    Init init = Init::random;
    std::optional<std::string> config, ema_start;
    void describe(config::Section& section);
  } unet;
  bool gradient_checkpointing = false;
  std::string dtype = "auto";
  config::Auto<bool> channels_last{}, fused_kernels{};
  config::Auto<bool> cuda_graphs{};

  void describe(config::Section& section);
};

// The sections that a producer uses, from archives to encodings.
struct ProducerConfig {
  RunConfig run;
  ModelConfig model;
  DataConfig data;
  TransformConfig transform;
  TokenizerConfig tokenizer;
  EncodeConfig encode;

  void describe(config::Section& section);
};

// Keys such as `model.dtype`, which every trained network has.
void describe_dtype(config::Section& section, std::string& dtype);
void describe_channels_last(config::Section& section, config::Auto<bool>& channels_last);
void describe_fused_kernels(config::Section& section, config::Auto<bool>& fused_kernels);
void describe_cuda_graphs(config::Section& section, config::Auto<bool>& cuda_graphs);

}  // namespace millrace
