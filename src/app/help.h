#pragma once
#include <string>
#include <vector>

#include "command.h"

namespace millrace {

// What `millrace --help` prints: the commands, a line each.
void print_overview(const std::vector<Command>& commands);

// What `millrace COMMAND --help [SECTION]` prints; the section `markdown` makes the tables of docs/config.md.
void print_help(const Command& command, const std::string& section);

// millrace(1) in roff, of the same tables: `millrace --help man`, which cmake --install calls.
void print_man_page(const std::vector<Command>& commands);

}  // namespace millrace
