#include "command_line.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <string_view>

#include "millrace/comm/launch_rank.h"
#include "millrace/config/closest.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/io/net/urls.h"

namespace millrace {
namespace po = boost::program_options;

std::optional<std::string> CommandLine::find(const std::string& name) const {
  const auto found = options.find(name);
  if (found == options.end() || found->second.empty()) return std::nullopt;
  return found->second.front();
}

std::string CommandLine::get(const std::string& name) const {
  if (auto value = find(name)) return *value;
  throw Error(Exit::usage, fmt::format("{} needs --{}", command, name), fmt::format("millrace {} --help", command));
}

bool is_override(const std::string& argument) {
  const auto equals = argument.find('=');
  const bool deletes = argument.starts_with('~');
  if (equals == argument.npos && !deletes) return false;
  auto key = std::string_view(argument).substr(0, equals);
  const auto signs = deletes ? std::size_t{1} : std::min(key.find_first_not_of('+'), key.size());
  key.remove_prefix(signs);
  if (key.empty() || key.front() == '.' || key.front() == '-' || key.back() == '.') return false;
  if (signs > 0 && !std::isalpha(static_cast<unsigned char>(key.front()))) return false;
  return std::ranges::all_of(key, [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_.-[]").find(c) != std::string_view::npos;
  });
}

static po::options_description describe(const std::vector<OptionSpec>& options) {
  po::options_description description;
  auto add = description.add_options();
  add("config", po::value<std::vector<std::string>>()->composing());
  add("print-config", po::value<std::string>()->implicit_value("yaml"));
  add("dry-run", po::bool_switch());
  add("version", po::bool_switch());
  add("help,h", po::value<std::string>()->implicit_value(""));
  for (const auto& option : options) {
    auto* value = po::value<std::vector<std::string>>();
    if (option.takes == OptionSpec::Takes::nothing) value->zero_tokens();
    if (option.takes == OptionSpec::Takes::many) value->multitoken();
    if (option.takes == OptionSpec::Takes::one) value->composing();
    add(option.name.c_str(), value);
  }
  return description;
}

static bool is_option(const std::string& argument, OptionSpec::Takes takes, const std::vector<OptionSpec>& options) {
  return std::ranges::any_of(
      options, [&](const OptionSpec& option) { return option.takes == takes && argument == "--" + option.name; });
}

// The argument after such an option is its value, even where it looks like an override.
static bool takes_one(const std::string& argument, const std::vector<OptionSpec>& options) {
  return argument == "--config" || is_option(argument, OptionSpec::Takes::one, options);
}

// Behind an option that takes texts (`--prompt "E=mc2" threads=2 generate.steps=30`) only what hardly is one of them.
static bool is_no_text(const std::string& override) {
  const auto key = override.substr(0, override.find('='));
  return key == "threads" || key == "seed" || key.find('.') != key.npos;
}

// A shell makes several arguments of key=FOLDER/{00000..00999}.tar without quotes, and only the last would count. Two
// may as well be a script's default and what takes its place.
static void check_quoted(const std::vector<std::string>& arguments, std::size_t i) {
  const auto key = arguments[i].substr(0, arguments[i].find('=') + 1);
  const auto is_same = [&](std::size_t other) { return other < arguments.size() && arguments[other].starts_with(key); };
  if (i == 0 || !key.ends_with(".path=") || !is_same(i - 1)) return;
  const auto hint = fmt::format("quote it where it has braces: '{}FOLDER/{{00000..00999}}.tar'", key);
  if (is_same(i + 1) || (i > 1 && is_same(i - 2)))
    throw Error(Exit::usage, fmt::format("{}... is given several times in a row, and only the last would count", key),
                hint);
  if (is_first_process()) log::warning("{}... is given twice in a row, and the last one counts; {}", key, hint);
}

[[noreturn]] static void refuse_option(const std::string& argument, const std::vector<OptionSpec>& options) {
  std::vector<std::string> known = {"--config", "--print-config", "--dry-run", "--version", "--help"};
  for (const auto& option : options) known.push_back("--" + option.name);
  const auto name = argument.substr(0, argument.find('='));
  throw Error(Exit::usage, fmt::format("unknown option {}{}", argument, config::did_you_mean(name, known)),
              "settings are given as section.key=value, without dashes; see --help, and docs/coming-from-python.md for "
              "what stands for other programs' options");
}

// Takes the overrides; returns what is left, options with their values and paths.
static std::vector<std::string> take_overrides(const std::vector<std::string>& arguments,
                                               const std::vector<OptionSpec>& options, bool takes_paths,
                                               CommandLine& line) {
  std::vector<std::string> rest;
  bool among_texts = false;  // behind an option that takes many
  std::error_code ignored;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    if (argument.starts_with("--"))
      among_texts = is_option(argument.substr(0, argument.find('=')), OptionSpec::Takes::many, options);
    if (i > 0 && takes_one(arguments[i - 1], options)) {
      rest.push_back(argument);
    } else if (argument.starts_with("config=")) {
      rest.push_back("--" + argument);
    } else if (is_override(argument) && (!among_texts || is_no_text(argument)) &&
               !(takes_paths && std::filesystem::exists(argument, ignored))) {
      check_quoted(arguments, i);
      line.inputs.overrides.push_back(argument);
    } else {
      rest.push_back(argument);
    }
  }
  return rest;
}

static void take_option(const po::option& option, const std::vector<OptionSpec>& options, CommandLine& line) {
  if (option.position_key >= 0 || option.string_key == "paths") {
    line.paths.insert(line.paths.end(), option.value.begin(), option.value.end());
  } else if (option.unregistered) {
    refuse_option(option.original_tokens.front(), options);
  } else if (option.string_key == "config") {
    line.inputs.files.insert(line.inputs.files.end(), option.value.begin(), option.value.end());
  } else if (option.string_key == "print-config") {
    line.print_config = option.value.empty() || option.value[0].empty() ? "yaml" : option.value[0];
  } else if (option.string_key == "dry-run") {
    line.dry_run = true;
  } else if (option.string_key == "version") {
    line.version = true;
  } else if (option.string_key == "help") {
    line.help = option.value.empty() ? "" : option.value[0];
  } else {
    auto& values = line.options[option.string_key];
    values.insert(values.end(), option.value.begin(), option.value.end());
  }
}

static void take_options(const std::vector<std::string>& arguments, const std::vector<OptionSpec>& options,
                         CommandLine& line) {
  try {
    const auto description = describe(options);
    po::positional_options_description none;
    const auto parsed = po::command_line_parser(arguments)
                            .options(description)
                            .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
                            .positional(none.add("paths", -1))
                            .allow_unregistered()
                            .run();
    for (const auto& option : parsed.options) take_option(option, options, line);
  } catch (const po::error& error) {
    throw Error(Exit::usage, error.what(), "see --help");
  }
}

CommandLine parse_command_line(const std::vector<std::string>& arguments, const std::vector<OptionSpec>& options,
                               bool takes_paths) {
  CommandLine line;
  take_options(take_overrides(arguments, options, takes_paths, line), options, line);
  if (line.print_config && line.print_config != "yaml" && line.print_config != "json")
    fail(Exit::usage, "--print-config={}: yaml or json", *line.print_config);
  if (const auto out = line.find("out"); out && is_url(*out))
    throw Error(Exit::usage, fmt::format("--out {}: an address; it must be a folder or file here", *out),
                "write it here and send it on, by 'aws s3 sync' for example");
  if (!takes_paths && !line.paths.empty())
    throw Error(Exit::usage, fmt::format("what is \"{}\"?", line.paths.front()),
                "settings are given as section.key=value; see --help");
  return line;
}

}  // namespace millrace
