#pragma once
#include <filesystem>
#include <vector>

#include "millrace/generate/generate.h"

namespace millrace {

// What a file of prompts asks for: a prompt a line, empty lines skipped, or (.jsonl) objects with "prompt" and maybe
// "seed" and "negative_prompt". `fallback`: the negative prompt of rows without one, and the seed of the first row; the
// seeds of the following count up. What is not UTF-8 becomes U+FFFD. Error(io) naming the file and line; a file without
// prompts is none.
std::vector<ImageRequest> read_prompts(const std::filesystem::path& file, const ImageRequest& fallback);

}  // namespace millrace
