#pragma once
#include "command_line.h"
#include "millrace/config/config.h"
#include "output.h"

namespace millrace {

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

}  // namespace millrace
