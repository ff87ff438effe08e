#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

// model_index.json of a Stable Diffusion pipeline of the five parts that every one has.
nlohmann::json model_index(const std::string& scheduler_class);

}  // namespace millrace
