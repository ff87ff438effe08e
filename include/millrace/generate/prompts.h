#pragma once
#include <filesystem>
#include <vector>

#include "millrace/generate/generate.h"

namespace millrace {

// What a list (io/lists.h) asks for: a prompt a line, or rows of .jsonl, .csv and .tsv with `prompt` (else `caption`)
// and maybe `seed` and `negative_prompt`. Empty lines hold none; a file with any other name is one of lines.
// `fallback`: the negative prompt of rows without one, and the seed of the first row; the seeds of the following count
// up. What is not UTF-8 becomes U+FFFD. Error(io) naming file and row, also for a file without prompts; Error(usage)
// for .json and .parquet.
std::vector<ImageRequest> read_prompts(const std::filesystem::path& file, const ImageRequest& fallback);

}  // namespace millrace
