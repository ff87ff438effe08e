#pragma once
#include <optional>

#include "millrace/core/error.h"

namespace millrace {

// What the exception that is being handled means, if it is known; called in a catch block, to throw it again and look.
// Exit::timeout: this node is damaged.
using ForeignError = std::optional<Error> (*)();

// From now on present_error asks `translate` about exceptions that are not the program's own. Once, at the start.
void translate_foreign_errors(ForeignError translate);

}  // namespace millrace
