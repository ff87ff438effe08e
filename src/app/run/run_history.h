#pragma once
#include <filesystem>

#include "run/run_description.h"
#include "run/start.h"

namespace millrace {

// Adds this start to RUN/starts.jsonl, a line each: when, in which job, on what, from which step, what is other than at
// the start before, and how that one ended. The files that tell so (STATE, fault/, config.yaml, environment.json) are
// there until the start behind it: call this before they are replaced. Logs what changed besides the settings. False
// where a disk has refused the line, which is warned about. docs/formats.md has the keys.
bool add_start(const std::filesystem::path& run_dir, const RunDescription& description, const Start& start);

}  // namespace millrace
