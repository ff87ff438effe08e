#pragma once
#include <string>
#include <vector>

#include "command_line.h"
#include "millrace/config/config.h"
#include "millrace/core/error.h"
#include "output.h"

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

// Reads the configuration of a command; `check` adds what is wrong beyond single keys, so that all of it is told at
// once. With --print-config the resolved configuration is printed, unless another rank does, and `printed` is true: the
// command then ends at once.
template <class Root>
struct Loaded {
  Root root;
  config::Report report;
  bool printed = false;
};

template <class Root, class Check>
Loaded<Root> load_config(const CommandLine& line, Check&& check, bool prints = true, const Root& defaults = {}) {
  Loaded<Root> loaded;
  loaded.root = defaults;
  loaded.report = config::load(loaded.root, line.inputs);
  check(loaded.root, loaded.report);
  loaded.report.throw_if_problems();
  if (prints) report_unread(loaded.report.unread);
  if (line.print_config) {
    if (prints)
      print_out(*line.print_config == "json" ? config::print_json(loaded.root)
                                             : config::print_yaml(loaded.root, loaded.report));
    loaded.printed = true;
  }
  return loaded;
}

template <class Root>
Loaded<Root> load_config(const CommandLine& line) {
  return load_config<Root>(line, [](const Root&, config::Report&) {});
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
