// Help on screen and as a manual page, from the tables of commands, options and settings.
#include "help.h"

#include "output.h"

namespace millrace {
namespace {

constexpr auto exit_codes =
    "0 done, 2 usage or configuration, 70 bug, 74 input/output, 75 saved and to be requeued, 76 hang, 77 bad data, 78 "
    "numerics";

// The options that a command with settings has beside its own.
std::vector<OptionSpec> options_of(const Command& command) {
  auto options = command.options;
  options.push_back({"version", "", "print this program's version and stop"});
  if (command.schema) {
    options.push_back({"config", "FILE", "settings from a YAML file; may be repeated, later ones win"});
    options.push_back({"print-config[=json]", "", "print all settings with their origin and stop"});
    options.push_back({"dry-run", "", "check the settings, print the plan where there is one, write nothing and stop"});
  }
  return options;
}

// Roff takes a backslash for its own, a dash for a hyphen, and a line that begins with a dot or quote for a request.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) escaped += "\\&";
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

void print_overview(const std::vector<Command>& commands) {
  say("millrace {} - Stable Diffusion pre-training as one MPI program\n\nusage: millrace COMMAND [--config FILE]... "
      "[section.key=value]...\n\n",
      MILLRACE_VERSION);
  for (const auto& command : commands) say("  {:<18} {}\n", command.name, command.summary);
  say("\nmillrace COMMAND --help [SECTION] lists a command's options and settings; --print-config[=json] shows where "
      "each is from.\nmillrace --licenses lists the libraries in use, --version tells this program's version.\n"
      "Exit codes: {}.\n",
      exit_codes);
}

void print_help(const Command& command, const std::string& section) {
  if (section == "markdown" && command.schema) {
    print_out(config::markdown(command.schema()));
    return;
  }
  if (section.empty()) {
    say("{}\n\nusage: millrace {} {}\n", command.summary, command.name, command.usage);
    for (const auto& option : options_of(command))
      say("  --{:<24} {}\n", option.name + (option.value.empty() ? "" : " " + option.value), option.help);
  }
  if (command.schema) say("\n{}", config::help(command.schema(), section));
}

void print_man_page(const std::vector<Command>& commands) {
  say(".TH MILLRACE 1 \"\" \"millrace {}\" \"User Commands\"\n.SH NAME\nmillrace \\- Stable Diffusion pre\\-training "
      "as one "
      "MPI program\n.SH SYNOPSIS\n.B millrace\n\\fICOMMAND\\fR [\\fB\\-\\-config\\fR \\fIFILE\\fR]... "
      "[\\fIsection.key\\fR=\\fIvalue\\fR]...\n.SH COMMANDS\n",
      MILLRACE_VERSION);
  for (const auto& command : commands) {
    say(".SS {}\n{}\n.PP\n\\fBmillrace {}\\fR {}\n", roff(command.name), roff(command.summary), roff(command.name),
        roff(command.usage));
    for (const auto& option : options_of(command))
      say(".TP\n\\fB\\-\\-{}\\fR {}\n{}\n", roff(option.name), roff(option.value), roff(option.help));
  }
  say(".SH SETTINGS\n");
  for (const auto& command : commands) {
    if (!command.schema) continue;
    say(".SS {}\n.nf\n{}.fi\n", roff(command.name), roff(config::help(command.schema(), "")));
  }
  say(".SH EXIT STATUS\n{}.\n.SH FILES\nMILLRACE_DOC, which the modulefile sets, names the folder of README.md and "
      "docs/.\n",
      roff(exit_codes));
}

}  // namespace millrace
