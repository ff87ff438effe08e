#pragma once
#include <cstdint>
#include <filesystem>
#include <set>

// What happens to the other folders in RUN/checkpoints. One rank at a time does it; Error only where it is said.
namespace millrace {

// Bytes of the checkpoints in the run's folder that a killed run has left half written or half deleted:
// CheckpointWriter removes them.
std::uintmax_t leftover_bytes(const std::filesystem::path& run_dir);
void remove_leftover_checkpoints(const std::filesystem::path& checkpoints);

// Bytes of those that have proved to be damaged: CheckpointWriter removes them where a save has failed, for want of
// room perhaps.
std::uintmax_t damaged_bytes(const std::filesystem::path& run_dir);
// Whether there was any.
bool remove_damaged_checkpoints(const std::filesystem::path& checkpoints);

// Says how much the checkpoints and lines take that nothing will ever delete, because people may want to go back to
// them.
void tell_of_abandoned(const std::filesystem::path& run_dir);

// Checkpoints from beyond the step that this process began with: damaged, or of a time that the user went back from.
// Left under their names, the next start would continue with one of them. So go the lines that were put aside for them
// (line_files.h). Error(io).
void abandon_newer(const std::filesystem::path& run_dir, std::int64_t start);

// Marks a checkpoint that is being made as one that stays. Error(io).
void keep_for_good(const std::filesystem::path& checkpoint);

// Renames one that is not what was written to step-N.damaged, for people to look at, and deletes the one before: a disk
// that loses what it takes would be full of them. False, with a warning, where it keeps its name.
bool put_aside(const std::filesystem::path& checkpoint);

// Deletes what is older than the newest `keep` up to `newest`, but for what is marked to stay. What is newer counts for
// nothing: it was passed over as damaged, or comes from before a restart from an older step. Nor do the steps in
// `unread`: nobody knows whether a restart could use them.
void delete_old(const std::filesystem::path& run_dir, std::int64_t newest, int keep,
                const std::set<std::int64_t>& unread);

}  // namespace millrace
