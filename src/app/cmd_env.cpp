// env: versions and hardware, for bug reports.
#include "command.h"
#include "environment.h"
#include "output.h"

namespace millrace {

static int run_env(const CommandLine&) {
  for (const auto& [name, text] : describe_environment()) say("{:<12} {}\n", name, text);
  return 0;
}

Command env_command() {
  return {.name = "env", .summary = "versions and hardware, for bug reports", .run = run_env, .prints = true};
}

}  // namespace millrace
