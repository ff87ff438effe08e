#pragma once
#include <cstdint>
#include <filesystem>
#include <set>

#include "millrace/checkpoint/writer.h"

// What happens to the other folders in RUN/checkpoints. Rank 0 of the trainers alone; nothing here ends a run.
namespace millrace {

// Says how much the checkpoints and lines take that nothing will ever delete, because people may want to go back to
// them.
void tell_of_abandoned(const std::filesystem::path& run_dir);

// Renames a checkpoint, or lines, of a time that is not continued to NAME.abandoned-*. Error(io).
void abandon(const std::filesystem::path& path);

// Checkpoints from beyond the step that this process began with: damaged, or of a time that the user went back from.
// Left under their names, the next start would continue with one of them. So go the lines that were put aside for them
// (line_files.h).
void abandon_newer(const std::filesystem::path& run_dir, std::int64_t start);

// Marks a checkpoint that is being made as one that stays.
void keep_for_good(const std::filesystem::path& checkpoint);

// Renames one that is not what was written to step-N.damaged, for people to look at, and deletes the one before: a disk
// that loses what it takes would be full of them.
// False, with a warning, where it keeps its name.
bool put_aside(const std::filesystem::path& checkpoint);

// Deletes what was put aside, to make room for the next checkpoint; whether there was some of it.
bool remove_damaged_checkpoints(const std::filesystem::path& checkpoints);

// Deletes what is older than the newest `keep` up to `newest`, but for what is marked to stay. What is newer counts for
// nothing: it was passed over as damaged, or comes from before a restart from an older step. Nor do the steps in
// `unread`: nobody knows whether a restart could use them.
void delete_old(const std::filesystem::path& run_dir, std::int64_t newest, int keep,
                const std::set<std::int64_t>& unread);

}  // namespace millrace
