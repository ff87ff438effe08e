#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace millrace {

// A file of captions: .txt a line each, .csv, .tsv and .jsonl in a column `caption` or `prompt`; each also gzipped.
// Empty lines hold none. Error(io) naming file and row, also for a file without any.
std::vector<std::string> read_captions(const std::filesystem::path& file);

}  // namespace millrace
