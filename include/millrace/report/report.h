#pragma once
#include <span>

#include "millrace/report/document.h"
#include "millrace/report/run_record.h"

namespace millrace {

// What runs did, side by side: how far, how fast, what held them back, losses, rejected rows, pictures, evaluation,
// events, where they ran, and the settings that are not those of `base`. Reads and shrinks the pictures; one that is
// broken is left out.
Document make_report(std::span<const RunRecord> runs);

}  // namespace millrace
