#pragma once
#include <cstdint>
#include <filesystem>

// Files of one JSON object a step, metrics.jsonl and ids.jsonl, of a run that goes on from a checkpoint.
//
// NOTE [Lines go with their checkpoints]: A life cuts off what is beyond the step it begins with. Where checkpoints
// beyond it still have their names, nobody has decided yet that their time is over: the first save puts them aside
// (abandon_newer), and without one the next start goes on from the newest of them. So what is cut off lies beside the
// file meanwhile, in NAME.beyond-step-N. Where a checkpoint beyond N still has its name, the next start puts it back,
// which makes the lines whole again whatever life was killed in between; else it is renamed as the checkpoints are
// (abandon_lines), by the first save, once all these are, or by the start behind a kill.
namespace millrace {

// Drops the lines of a JSON-lines file beyond `last_step`, which a resumed run will write again, and one that a crash
// has cut short. Nothing where there is no file. Error(io), as below.
void drop_lines_beyond(const std::filesystem::path& path, std::int64_t last_step);

// The same, but what goes lies beside the file then.
void put_lines_aside(const std::filesystem::path& path, std::int64_t last_step);

// Makes the file what it was then, where no save has come since: what it has got meanwhile goes.
void put_lines_back(const std::filesystem::path& path);

}  // namespace millrace
