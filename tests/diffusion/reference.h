#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "millrace/diffusion/scheduler_config.h"
#include "test_data.h"

// tests/golden/diffusion/reference.json, written by scripts/goldens/diffusion.py with diffusers.
namespace millrace {

inline const nlohmann::ordered_json& reference() {
  static const nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(std::ifstream(test::data_dir() / "diffusion/reference.json"));
  return json;
}

inline SchedulerClass scheduler_class(std::string_view name) {
  for (const auto c : {SchedulerClass::ddpm, SchedulerClass::ddim, SchedulerClass::pndm, SchedulerClass::euler_discrete,
                       SchedulerClass::dpmsolver_multistep, SchedulerClass::unipc_multistep}) {
    if (name == to_string(c)) return c;
  }
  throw std::runtime_error("no such class");
}

}  // namespace millrace
