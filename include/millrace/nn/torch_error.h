#pragma once
#include <optional>

#include "millrace/core/error.h"

namespace millrace {

// The exception that is being handled, when it is one of LibTorch about the device: Error(usage) that says which keys
// need less memory, or Error(suspect_node) for a GPU that failed. Called in a catch block.
std::optional<Error> present_torch_error();

}  // namespace millrace
