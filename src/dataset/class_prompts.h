#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

// Captions of a class data set (idx_to_prompt): a JSON object, class -> caption, or a list of captions.
class ClassPrompts {
 public:
  ClassPrompts(const std::string& path, const std::string& section);  // Error(io) naming the file and the section

  // Spaces around the class do not count.
  std::optional<std::string> find(std::string_view cls) const;

 private:
  std::map<std::string, std::string, std::less<>> prompts_;
};

}  // namespace millrace
