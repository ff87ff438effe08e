#pragma once
#include <filesystem>
#include <vector>

// What stands in a run's folder.
namespace millrace::storm {

namespace fs = std::filesystem;

// The newest step that stands in metrics.jsonl, 0 when there is none.
int last_step(const fs::path& run);
// Steps of the checkpoints that have their final names, in order.
std::vector<int> listed_checkpoints(const fs::path& run);
// The newest of them, 0 when there is none.
int last_checkpoint(const fs::path& run);
fs::path checkpoint_folder(const fs::path& run, int step);

}  // namespace millrace::storm
