// Times forward + backward of a U-Net, one repetition for each line on stdin, so that another program can take turns
// with it: unet_speed CONFIG_JSON BATCH SIDE TOKENS THREADS (scripts/bench/unet_bench.py).
#include <torch/utils.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/models/unet_2d_condition.h"
#include "millrace/nn/device.h"

int main(int argc, char** argv) {
  using namespace millrace;
  if (argc != 6) {
    std::cerr << "usage: unet_speed CONFIG_JSON BATCH SIDE TOKENS THREADS < lines\n";
    return 2;
  }
  keep_freed_host_memory();
  at::set_num_threads(std::stoi(argv[5]));
  const auto config = UNet2DConditionConfig::from_json(nlohmann::json::parse(argv[1]));
  const std::int64_t batch = std::stoi(argv[2]), side = std::stoi(argv[3]), tokens = std::stoi(argv[4]);

  torch::manual_seed(0);
  UNet2DConditionModel unet(config);
  for (auto& parameter : unet->parameters()) {
    const torch::NoGradGuard no_grad;
    if (parameter.dim() == 1) {
      parameter.fill_(0.5);
    } else {
      parameter.uniform_(-1, 1).div_(std::sqrt(static_cast<double>(parameter[0].numel())));
    }
  }
  const auto sample = torch::randn({batch, config.in_channels, side, side});
  const auto context = torch::randn({batch, tokens, config.cross_attention_dim.front()});
  const auto timestep = torch::randint(1000, {batch});
  const auto target = torch::randn({batch, config.out_channels, side, side});

  for (std::string line; std::getline(std::cin, line);) {
    unet->zero_grad();
    const auto start = std::chrono::steady_clock::now();
    const auto loss = torch::mse_loss(unet(sample, timestep, context), target);
    const auto middle = std::chrono::steady_clock::now();
    loss.backward();
    const auto end = std::chrono::steady_clock::now();
    const auto ms = [](auto duration) { return std::chrono::duration<double, std::milli>(duration).count(); };
    std::cout << ms(middle - start) << ' ' << ms(end - middle) << std::endl;
  }
}
