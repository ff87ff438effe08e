#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

// Names in a run's folder that several sources use; scripts and people rely on them.
namespace millrace {

// The comments say who writes a file; who reads it besides people and scripts. "The start" is open_run_folder.
namespace run_file {

inline constexpr const char* lease = "LEASE";                   // RunLease
inline constexpr const char* state = "STATE";                   // StateFile, preprocess; inspect, evaluate, report
inline constexpr const char* next_state = "STATE.next";         // StateFile, for a moment
inline constexpr const char* done = "DONE";                     // as STATE, and removed once there is more
inline constexpr const char* config = "config.yaml";            // the start; TensorBoard, report
inline constexpr const char* environment = "environment.json";  // the start; report
inline constexpr const char* base_config = "template.yaml";     // the start; report
inline constexpr const char* archives = "archives.tsv";         // the start; a restart
inline constexpr const char* starts = "starts.jsonl";           // the start, a line each; report
inline constexpr const char* metrics = "metrics.jsonl";         // Progress; report. Cut by checkpoint/line_files.h
inline constexpr const char* ids = "ids.jsonl";                 // Progress. Cut as well
inline constexpr const char* ledger = "ledger.json";            // DataAccount, FillingProgress; report
inline constexpr const char* rollback = "rollback.json";        // when a run goes back; a restart
inline constexpr const char* evaluations = "evaluation.jsonl";  // evaluate; report

// Folders.
inline constexpr const char* log = "log";                  // the lines and stacks of each rank; report
inline constexpr const char* fault = "fault";              // comm/fault.h; report
inline constexpr const char* rejected = "rejected";        // RejectedList
inline constexpr const char* samples = "samples";          // Pictures; report
inline constexpr const char* tensorboard = "tensorboard";  // Progress. Settled by checkpoint/line_files.h
inline constexpr const char* pipeline = "pipeline";        // train-autoencoder, export by people; report

// In each checkpoint.
inline constexpr const char* manifest = "MANIFEST.json";  // CheckpointManifest; its readers, inspect, report

}  // namespace run_file

std::filesystem::path checkpoints_in(const std::filesystem::path& run_dir);
// Whether `checkpoint` is in the run's checkpoints/, or a link to it is, such as people leave when they move a
// checkpoint away; false if that cannot be told.
bool is_checkpoint_of(const std::filesystem::path& run_dir, const std::filesystem::path& checkpoint);
// The canonical path of a checkpoint, with all links followed; the path itself if that cannot be told.
std::filesystem::path place_of_checkpoint(const std::filesystem::path& checkpoint);
// The folder of the run that made the checkpoint and in which it lies; another run that goes on from it may have a link
// to it.
std::filesystem::path run_of_checkpoint(const std::filesystem::path& checkpoint);

std::string step_name(std::int64_t step);  // "step-00002000"
// The step of such a name, of eight digits or more; nothing for other names.
std::optional<std::int64_t> step_of_name(std::string_view name);
std::string rank_name(std::int64_t rank);  // "rank-00012"

}  // namespace millrace
