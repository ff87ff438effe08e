#pragma once
#include <optional>

#include "millrace/core/error.h"

namespace millrace {

struct ForeignFault {
  Error error;
  bool is_of_this_node;  // blame_this_rank (fault.h)
};

// Translates the exception in flight (call it in a catch block; it rethrows to find the type). Nothing for types it
// does not know.
using ForeignError = std::optional<ForeignFault> (*)();

// From now on present_error asks `translate` about exceptions that are not the program's own. Once, at the start.
void translate_foreign_errors(ForeignError translate);

}  // namespace millrace
