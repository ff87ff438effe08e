#include <algorithm>
#include <functional>

#include "millrace/checkpoint/reader.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"

namespace millrace {

std::vector<CheckpointName> list_checkpoints(const std::filesystem::path& run_dir) {
  std::vector<CheckpointName> found;
  const auto folder = checkpoints_in(run_dir);
  if (!std::filesystem::is_directory(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const auto step = step_of_name(entry.path().filename().string()); step && entry.is_directory())
      found.push_back({entry.path(), *step});
  std::ranges::sort(found, std::greater(), &CheckpointName::step);
  return found;
}

std::optional<CheckpointReader> find_checkpoint(const std::filesystem::path& run_dir, const Group& group,
                                                std::optional<std::int64_t> before, const std::vector<int>& verifiers) {
  std::vector<CheckpointName> candidates;
  on_root(group, [&] {
    candidates = list_checkpoints(run_dir);
    if (before) std::erase_if(candidates, [&](const CheckpointName& name) { return name.step >= *before; });
  });
  const auto count = group.largest(std::ssize(candidates));
  for (std::int64_t i = 0; i < count; ++i) {
    const bool is_root = group.is_root();
    const std::filesystem::path path =
        group.broadcast(is_root ? candidates[static_cast<std::size_t>(i)].path.string() : "");
    try {
      return CheckpointReader::open(path, group, verifiers);
    } catch (const UnreadableCheckpoint&) {
      throw;
    } catch (const AgreedError& broken) {
      if (broken.exit() == Exit::usage || broken.exit() == Exit::suspect_node) throw;  // memory: nothing of its content
      if (is_root) log::warning("checkpoint {} is not used: {}", path.string(), broken.what());
    }
  }
  if (count == 0) return std::nullopt;
  throw AgreedError(
      Error(Exit::io, fmt::format("none of the {} checkpoints in {} is valid", count, checkpoints_in(run_dir).string()),
            "restore one from a backup, or move the run folder away to start from step 0"),
      group);
}

}  // namespace millrace
