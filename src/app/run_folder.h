#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/core/config.h"
#include "millrace/data/manifest.h"
#include "millrace/train/loop.h"

// The files of a run that are neither tensors nor metrics, and what a restart checks before it goes on.
namespace millrace {

// Makes run.dir with its resolved config.yaml (rank 0 of `world`; errors reach all).
void open_run_folder(const Group& world, const std::filesystem::path& run_dir, const std::string& config_yaml);

// Where a run starts: nothing for step 0. `resume` is auto, never or a folder. Collective over `world`; Error(usage)
// for `never` on a run that holds checkpoints.
std::optional<std::filesystem::path> find_start(const Group& world, const std::filesystem::path& run_dir,
                                                const std::string& resume);

// The differences between the run that wrote a checkpoint and this one: all are logged; those under a key of `fixed`
// (or a changed data manifest or model shape) are an Error(usage) unless allowed. What changed in the data is told from
// the archives.tsv of the run that the checkpoint belongs to.
void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const std::vector<std::string>& fixed, const nlohmann::json& manifest_extra, const Manifest& archives,
                  bool allow_changes);

// RUN/archives.tsv: the manifest's listing, rank 0.
void write_archives(const Group& world, const std::filesystem::path& run_dir, const Manifest& archives);

// RUN/DONE and RUN/STATE (JSON), rank 0.
void write_state(const std::filesystem::path& run_dir, const std::string& word, const LoopResult& result);

// What was reached, who waited for whom, and what to do next.
void print_footer(const std::filesystem::path& run_dir, const LoopResult& result, bool has_producers,
                  const std::string& next_command);

}  // namespace millrace
