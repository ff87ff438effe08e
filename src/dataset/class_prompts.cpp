#include "class_prompts.h"

#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/io/json.h"

namespace millrace {

using nlohmann::json;

ClassPrompts::ClassPrompts(const std::string& path, const std::string& section) {
  const json prompts = read_json(path);
  if (!prompts.is_object() && !prompts.is_array()) {
    throw Error(Exit::io, fmt::format("{}.idx_to_prompt: {} is neither a JSON object nor a list", section, path),
                R"(for example {"0": "a photo of a cat", "1": "a photo of a dog"})");
  }
  for (const auto& [cls, prompt] : prompts.items()) {
    if (prompt.is_null()) continue;
    if (!prompt.is_string())
      fail(Exit::io, "{}.idx_to_prompt: {}: the caption of class {} is no text: {}", section, path, cls, prompt.dump());
    prompts_.emplace(cls, prompt.get<std::string>());
  }
}

std::optional<std::string> ClassPrompts::find(std::string_view cls) const {
  const auto found = prompts_.find(trim(cls));
  if (found == prompts_.end()) return std::nullopt;
  return found->second;
}

}  // namespace millrace
