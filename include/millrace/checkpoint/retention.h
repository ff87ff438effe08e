#pragma once
#include <cstdint>
#include <filesystem>
#include <set>

// Which folders in RUN/checkpoints are deleted or renamed, besides the checkpoint being written. Call from one rank at
// a time. Functions throw only where Error is mentioned.
namespace millrace {

// Bytes in checkpoints that a killed run left half written or half deleted. CheckpointWriter removes them.
std::uintmax_t leftover_bytes(const std::filesystem::path& run_dir);
void remove_leftover_checkpoints(const std::filesystem::path& checkpoints);

// Bytes in checkpoints that turned out to be damaged. CheckpointWriter removes them after a failed save, since the disk
// may have been full.
std::uintmax_t damaged_bytes(const std::filesystem::path& run_dir);
// True if any was removed.
bool remove_damaged_checkpoints(const std::filesystem::path& checkpoints);

// Warns how much space is taken by *.abandoned-* checkpoints and lines, which nothing ever deletes because people may
// want to go back to them.
void tell_of_abandoned(const std::filesystem::path& run_dir);

// Renames checkpoints beyond the step this process started from (damaged, or of a time that the user went back from):
// the next start would otherwise resume from one. Lines put aside for them (line_files.h) are renamed too. Error(io).
void abandon_newer(const std::filesystem::path& run_dir, std::int64_t start);

// Marks a checkpoint that is being made as one that is never deleted. Error(io).
void keep_for_good(const std::filesystem::path& checkpoint);

// Renames a checkpoint that was not read back as written to step-N.damaged, for people to look at, and deletes the
// previous one: a disk that loses data would fill up with them. False, with a warning, if it cannot be renamed.
bool put_aside(const std::filesystem::path& checkpoint);

// Deletes checkpoints older than the newest `keep` up to step `newest`, except those marked to stay. Newer ones do not
// count: they were passed over as damaged, or are from before a restart from an older step. Nor do the steps in
// `unread`: nobody knows whether a restart could use them.
void delete_old(const std::filesystem::path& run_dir, std::int64_t newest, int keep,
                const std::set<std::int64_t>& unread);

}  // namespace millrace
