#include "millrace/checkpoint/retention.h"

#include <ranges>
#include <regex>
#include <vector>

#include "abandon.h"
#include "millrace/checkpoint/line_files.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/units.h"

namespace millrace {

constexpr const char* keep_name = "KEEP";

// What CheckpointWriter was making, under its lease, or deleting, and what a start has tried to write there
// (AtomicFile). A copy that somebody has called step-N.tmp is theirs.
static bool is_leftover(const fs::path& path) {
  static const std::regex temporary(R"(\.tmp-[0-9a-f]{16}-[0-9]+-[0-9a-f]{8}(-[0-9]+)?)");
  const auto extension = path.extension().string();
  return step_of_name(path.stem().string()) && (extension == ".trash" || std::regex_match(extension, temporary));
}

static std::vector<fs::path> leftovers_in(const fs::path& checkpoints) {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : list_folder(checkpoints, error))
    if (is_leftover(entry.path())) leftovers.push_back(entry.path());
  return leftovers;
}

void remove_leftover_checkpoints(const fs::path& checkpoints) {
  for (const auto& path : leftovers_in(checkpoints)) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) log::warning("cannot delete {}, which takes room: {}", path.string(), error.message());
  }
}

static std::vector<fs::path> damaged_in(const fs::path& checkpoints) {
  std::error_code error;
  std::vector<fs::path> damaged;
  for (const auto& entry : list_folder(checkpoints, error))
    if (entry.path().extension() == ".damaged" && step_of_name(entry.path().stem().string()))
      damaged.push_back(entry.path());
  return damaged;
}

bool remove_damaged_checkpoints(const fs::path& checkpoints) {
  bool is_any_gone = false;
  for (const auto& path : damaged_in(checkpoints)) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) continue;
    is_any_gone = true;
    log::warning("{} is deleted, to make room for the next checkpoint", path.string());
  }
  return is_any_gone;
}

// Of a file, or of a folder as far as it can be read.
static std::uintmax_t bytes_in(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  if (const auto size = fs::file_size(folder, error); !error) return size;
  error.clear();
  for (fs::recursive_directory_iterator file(folder, error), end; !error && file != end; file.increment(error))
    if (const auto size = file->file_size(error); !error) bytes += size;
  return bytes;
}

static std::uintmax_t bytes_in(const std::vector<fs::path>& folders) {
  std::uintmax_t bytes = 0;
  for (const auto& folder : folders) bytes += bytes_in(folder);
  return bytes;
}

std::uintmax_t leftover_bytes(const fs::path& run_dir) {
  return bytes_in(leftovers_in(checkpoints_in(run_dir)));
}

std::uintmax_t damaged_bytes(const fs::path& run_dir) {
  return bytes_in(damaged_in(checkpoints_in(run_dir)));
}

void tell_of_abandoned(const fs::path& run_dir) {
  int count = 0;
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& folder : {run_dir, checkpoints_in(run_dir)})
    for (const auto& entry : list_folder(folder, error)) {
      if (!entry.path().extension().string().starts_with(".abandoned-")) continue;
      ++count;
      bytes += bytes_in(entry.path());
    }
  if (count > 0)
    log::warning(
        "{}: {} *.abandoned-* there and in checkpoints, of times that are not continued, take {}; remove them when "
        "nobody wants to go back there",
        run_dir.string(), count, format_bytes(bytes));
}

// The newest last: a start behind a kill in between goes on from it, and has all its lines.
void abandon_newer(const fs::path& run_dir, std::int64_t start) {
  const auto checkpoints = list_checkpoints(run_dir);
  for (const auto& checkpoint : std::views::reverse(checkpoints))
    if (checkpoint.step > start) abandon(checkpoint.path);
  abandon_lines(run_dir);
}

void keep_for_good(const fs::path& checkpoint) {
  write_file_atomically(checkpoint / keep_name, "");
}

bool put_aside(const fs::path& checkpoint) {
  std::error_code error;
  for (const auto& before : damaged_in(checkpoint.parent_path())) fs::remove_all(before, error);
  fs::rename(checkpoint, checkpoint.string() + ".damaged", error);
  if (error) log::warning("cannot rename {}: {}", checkpoint.string(), error.message());
  return !error;
}

void delete_old(const fs::path& run_dir, std::int64_t newest, int keep, const std::set<std::int64_t>& unread) {
  std::vector<CheckpointName> all;
  try {
    all = list_checkpoints(run_dir);
  } catch (const std::exception& failed) {
    log::warning("old checkpoints stay: {}", failed.what());
    return;
  }
  std::erase_if(all, [&](const auto& checkpoint) { return checkpoint.step > newest; });
  int kept = 0;
  for (const auto& [path, step] : all) {
    if (kept < keep) {
      if (!unread.contains(step)) ++kept;
      continue;
    }
    std::error_code error;
    if (fs::exists(path / keep_name, error) || error) continue;
    const auto trash = path.string() + ".trash";
    fs::rename(path, trash, error);  // out of sight first: a half-deleted one is never a candidate
    if (!error) fs::remove_all(trash, error);
    if (error) log::warning("cannot delete the old checkpoint {}: {}", path.string(), error.message());
  }
}

}  // namespace millrace
