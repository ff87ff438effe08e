#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

namespace millrace {

// A model's lines of evaluation.jsonl in the order of their guidance scales, as a page: FID over CLIP score, which is
// how they are usually compared, and their numbers. Nothing unless two of them have both.
std::optional<std::string> render_sweep(const std::string& model, std::span<const nlohmann::ordered_json> lines);

}  // namespace millrace
