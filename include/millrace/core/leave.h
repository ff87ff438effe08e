#pragma once
#include <string>

#include "millrace/core/error.h"

namespace millrace {

// Ends the process with `exit` after `seconds`, whatever its threads wait for then; `why` goes to stderr. The earliest
// of several calls counts. For ways out that may hang: destructors that wait for a dead peer or a file system,
// MPI_Finalize.
void leave_within(double seconds, Exit exit, std::string why);

}  // namespace millrace
