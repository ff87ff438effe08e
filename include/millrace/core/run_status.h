#pragma once
#include <optional>
#include <string_view>

namespace millrace {

// What RUN/STATE says of a run, in these words.
enum class RunStatus {
  running,
  stopping,
  requeue,  // another start goes on
  done,
  failed,  // a person has to look
};

const char* to_string(RunStatus status);
std::optional<RunStatus> try_parse_run_status(std::string_view word);
// Whether it has not ended.
bool is_under_way(RunStatus status);

}  // namespace millrace
