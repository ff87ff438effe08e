#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

// metrics.jsonl and ids.jsonl, one JSON object per step, of a run that resumes from a checkpoint.
//
// NOTE [Lines go with their checkpoints]: A life, that is one start of the run, cuts off the lines beyond the step it
// begins with. As long as checkpoints beyond that step keep their names, they may still be used: the first save of this
// life renames them (abandon_newer), but without one the next start resumes from the newest of them. So until then the
// lines that were cut off lie beside the file, in NAME.beyond-step-N. If a checkpoint beyond N still has its name, the
// next start puts them back, which makes the lines whole again whatever life was killed in between. Otherwise they are
// renamed as the checkpoints were (abandon_lines): by the first save, once it has renamed all these, or by the start
// after a kill. TensorBoard's file of such a life, which hides those steps of older files from a viewer, has the same
// ending; if the lines come back it is removed.
namespace millrace {

// Cuts both files off after `step`, with which a life begins, before it writes to them: it will write the later lines
// again. A line that a crash cut short goes too, and ids.jsonl is cut even if this life writes none, since a later one
// may continue it. A life that begins at another run's checkpoint (`elsewhere`) keeps no lines: they are put aside as
// beyond step 0, or dropped if they are of such a life that never saved. Error(io).
void cut_line_files(const std::filesystem::path& run_dir, std::int64_t step, bool elsewhere = false);

// `.beyond-step-N` if cut_line_files(run_dir, N) put lines of metrics.jsonl aside, else "". A life that begins
// `elsewhere` uses N = 0.
std::string ending_of_try(const std::filesystem::path& run_dir, std::int64_t step);

// Renames lines that were put aside to NAME.abandoned-*, once no checkpoint beyond their step has its name any more.
// Error(io).
void abandon_lines(const std::filesystem::path& run_dir);

// N of a name such as metrics.jsonl.beyond-step-00003000; nothing for other names.
std::optional<std::int64_t> step_of_lines_beyond(const std::filesystem::path& file);

}  // namespace millrace
