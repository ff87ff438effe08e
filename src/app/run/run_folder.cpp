#include "run/run_folder.h"

#include <vector>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "millrace/train/state_file.h"

namespace millrace {

// The owner before may have written one after this start had chosen where to begin.
static void refuse_newer_checkpoint(const std::filesystem::path& run_dir, std::int64_t start) {
  for (const auto& newer : list_checkpoints(run_dir)) {
    if (newer.step <= start) return;
    try {
      CheckpointReader::open(newer.path);
    } catch (const UnreadableCheckpoint&) {
      throw;
    } catch (const Error&) {
      continue;  // passed over, as before
    }
    throw Error(Exit::requeue, fmt::format("{} has appeared while this start was made ready", newer.path.string()),
                "start again: it continues from there");
  }
}

// What killed processes were writing (AtomicFile); this one's thread may be renewing LEASE.
static void remove_half_written_files(const std::filesystem::path& run_dir) {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, error)) {
    const auto extension = entry.path().extension().string();
    if (extension.starts_with(".tmp-") && extension != ".tmp-" + process_name()) leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) std::filesystem::remove(path, error);
}

RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const RunDescription& description,
                         const Manifest& archives, const Start& start, const std::string& resume) {
  on_root(world, [&] {
    std::error_code code;
    std::filesystem::create_directories(checkpoints_in(run_dir), code);
    if (!code) std::filesystem::create_directories(run_dir / "log", code);
    if (code) fail(Exit::io, "run.dir: cannot make {}: {}", run_dir.string(), code.message());
  });
  auto lease = RunLease::acquire(world, run_dir);
  on_root(world, [&] {
    if (resume == "auto") refuse_newer_checkpoint(run_dir, start.state.step);
    remove_half_written_files(run_dir);
    std::error_code ignored;
    std::filesystem::remove_all(run_dir / "fault", ignored);
    write_file_atomically(run_dir / "config.yaml", description.config);
    write_file_atomically(run_dir / "environment.json", description.environment);
    if (description.base.empty())
      std::filesystem::remove(run_dir / "template.yaml", ignored);
    else
      write_file_atomically(run_dir / "template.yaml", description.base);
    write_file_atomically(run_dir / archives_name, archives.listing());
    StateFile(run_dir).write("running", start.state.point(), start.path());
  });
  return lease;
}

}  // namespace millrace
