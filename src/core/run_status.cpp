#include "millrace/core/run_status.h"

#include "millrace/core/error.h"

namespace millrace {

const char* to_string(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "running";
    case RunStatus::stopping:
      return "stopping";
    case RunStatus::requeue:
      return "requeue";
    case RunStatus::done:
      return "done";
    case RunStatus::failed:
      return "failed";
  }
  throw bug("a run has no such status");
}

std::optional<RunStatus> try_parse_run_status(std::string_view word) {
  for (const auto status :
       {RunStatus::running, RunStatus::stopping, RunStatus::requeue, RunStatus::done, RunStatus::failed})
    if (word == to_string(status)) return status;
  return std::nullopt;
}

bool is_under_way(RunStatus status) {
  return status == RunStatus::running || status == RunStatus::stopping;
}

}  // namespace millrace
