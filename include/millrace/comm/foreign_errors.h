#pragma once
#include <optional>

#include "millrace/core/error.h"

namespace millrace {

// Translates the exception in flight (call it in a catch block; it rethrows to find the type). Nothing for types it
// does not know. A result with Exit::suspect_node blames this rank's own node.
using ForeignError = std::optional<Error> (*)();

// From now on present_error asks `translate` about exceptions that are not the program's own. Once, at the start.
void translate_foreign_errors(ForeignError translate);

}  // namespace millrace
