#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

// Files of one JSON object a step, metrics.jsonl and ids.jsonl, of a run that goes on from a checkpoint.
//
// NOTE [Lines go with their checkpoints]: A life cuts off what is beyond the step it begins with. Where checkpoints
// beyond it still have their names, nobody has decided yet that their time is over: the first save puts them aside
// (abandon_newer), and without one the next start goes on from the newest of them. So what is cut off lies beside the
// file meanwhile, in NAME.beyond-step-N. Where a checkpoint beyond N still has its name, the next start puts it back,
// which makes the lines whole again whatever life was killed in between; else it is renamed as the checkpoints are
// (abandon_lines), by the first save, once all these are, or by the start behind a kill. TensorBoard's file of such a
// life, which hides those steps of older files from a viewer, has the same ending: where lines come back it goes.
namespace millrace {

// Cuts both files off behind `step`, with which a life begins, before it writes into them: it will write those lines
// again. A line that a crash has cut short goes, too. Also ids.jsonl in a life that writes none: a later one may go on
// with it. Nothing where there is no file. A life that begins at another run's checkpoint (`elsewhere`) goes on with
// none of these lines: all lie beside the file then, as beyond step 0. Error(io).
void cut_line_files(const std::filesystem::path& run_dir, std::int64_t step, bool elsewhere = false);

// ".beyond-step-N", behind cut_line_files(run_dir, N), or `elsewhere` with N = 0, that has put lines of metrics aside;
// else nothing.
std::string ending_of_try(const std::filesystem::path& run_dir, std::int64_t step);

// What was cut off is renamed as its checkpoints were, once none of them has its name any more. Error(io).
void abandon_lines(const std::filesystem::path& run_dir);

// The last line that is whole; null where there is none, or no file. Error(io).
nlohmann::json newest_line(const std::filesystem::path& file);

// The step of a name such as metrics.jsonl.beyond-step-00003000; nothing for others.
std::optional<std::int64_t> step_of_lines_beyond(const std::filesystem::path& file);

}  // namespace millrace
