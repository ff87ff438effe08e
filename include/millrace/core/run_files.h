#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

// Names in a run's folder that several modules use; scripts and people rely on them.
namespace millrace {

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir);

// What a life that went back has cut off a file: "metrics.jsonl.beyond-step-00003000" (src/train/line_files.h).
inline constexpr std::string_view lines_beyond = ".beyond-";

std::string step_name(std::int64_t step);  // "step-00002000"
std::string rank_name(std::int64_t rank);  // "rank-00012"

}  // namespace millrace
