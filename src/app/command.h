#pragma once
#include <string>
#include <vector>

#include "command_line.h"
#include "millrace/config/config.h"

namespace millrace {

// One subcommand of millrace.
struct Command {
  std::string name;
  std::string summary;     // one line for the list
  std::string usage = {};  // what follows "millrace NAME"
  std::vector<OptionSpec> options = {};
  bool takes_paths = false;
  int (*run)(const CommandLine& line) = nullptr;
  config::Section (*schema)() = nullptr;  // its configuration, for --help
  bool heeds_signals = false;             // ends in order when one asks it to
  bool prints = false;                    // exists to print: what it told must have reached standard output
  bool on_ranks = false;                  // all processes of mpirun or srun take part; otherwise the first one alone
};

// A schema over a value that lives as long as the program: for --help only.
template <class Root>
config::Section schema_of() {
  static Root root;
  return config::Section::of(root);
}

// cmd_*.cpp
Command init_command();
Command download_command();
Command preprocess_command();
Command train_command();
Command train_autoencoder_command();
Command preflight_command();
Command export_command();
Command generate_command();
Command probe_command();
Command tokenize_command();
Command inspect_command();
Command bench_command();
Command report_command();
Command evaluate_command();
Command plan_command();
Command env_command();

}  // namespace millrace
