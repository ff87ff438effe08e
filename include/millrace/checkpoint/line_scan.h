#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "millrace/io/input_file.h"

// Files of one JSON object a line, which may have gigabytes: they are read from their end.
namespace millrace {

inline constexpr std::uint64_t line_block = 1 << 20;  // bytes that are read at once

// At most `bytes`, fewer at the end of the file. Error(io).
std::string read_block(const InputFile& file, std::uint64_t begin, std::uint64_t bytes);

// Where the lines up to `last_step` end, by their key "step". A line that a crash has cut short is none. Error(io).
std::uint64_t end_of_lines(const InputFile& file, std::int64_t last_step);

// The last whole line, as JSON; null if there is none, or no file. Error(io).
nlohmann::json newest_line(const std::filesystem::path& file);

}  // namespace millrace
