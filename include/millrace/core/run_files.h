#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

// Names in a run's folder that several modules use; scripts and people rely on them.
namespace millrace {

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir);
// Whether a checkpoint lies there, wherever links lead; false where that cannot be told.
bool is_checkpoint_of(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint);
// However its path is spelled, and wherever links lead; the path itself where that cannot be told.
std::filesystem::path place_of_checkpoint(const std::filesystem::path& checkpoint);
// The folder of the run that it lies in, and was made by: another one may go on from it.
std::filesystem::path run_of_checkpoint(const std::filesystem::path& checkpoint);

// What a life that went back has cut off a file: "metrics.jsonl.beyond-step-00003000" (src/train/line_files.h).
std::filesystem::path lines_beyond(const std::filesystem::path& file, std::int64_t step);
// The step of such a name; nothing for others.
std::optional<std::int64_t> step_of_lines_beyond(const std::filesystem::path& file);

std::string step_name(std::int64_t step);  // "step-00002000"
std::string rank_name(std::int64_t rank);  // "rank-00012"

}  // namespace millrace
