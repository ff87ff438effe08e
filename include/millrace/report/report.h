#pragma once
#include <map>
#include <span>
#include <string>

#include "millrace/report/document.h"
#include "millrace/report/run_record.h"

namespace millrace {

// What runs did, side by side: how far, how fast, what held them back, losses, rejected rows, pictures, evaluation,
// events, and the settings that are not the `defaults` (by dotted key). Reads and shrinks the pictures; one that is
// broken is left out.
Document make_report(std::span<const RunRecord> runs, const std::map<std::string, std::string>& defaults);

}  // namespace millrace
