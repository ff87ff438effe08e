// millrace COMMAND ...: finds the command, runs it, and turns what went wrong into one message and an exit code.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <thread>

#include "command.h"
#include "help.h"
#include "launch/threads.h"
#include "licenses.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/foreign_errors.h"
#include "millrace/comm/launch_rank.h"
#include "millrace/config/closest.h"
#include "millrace/core/stop.h"
#include "millrace/io/net/stream.h"
#include "millrace/nn/device.h"
#include "millrace/nn/torch_error.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

std::vector<Command> all_commands() {
  return {init_command(),       plan_command(),    download_command(),
          preprocess_command(), train_command(),   train_autoencoder_command(),
          preflight_command(),  export_command(),  generate_command(),
          evaluate_command(),   inspect_command(), probe_command(),
          tokenize_command(),   bench_command(),   report_command(),
          env_command()};
}

const Command& find_command(const std::vector<Command>& commands, const std::string& name) {
  const auto found =
      std::find_if(commands.begin(), commands.end(), [&](const Command& command) { return command.name == name; });
  if (found != commands.end()) return *found;
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  throw Error(Exit::usage, fmt::format("unknown command \"{}\"{}", name, config::did_you_mean(name, names)),
              "millrace --help lists the commands");
}

// The exit code of what exists to tell something.
int told(int code = 0) {
  check_out();
  return code;
}

int tell_version() {
  say("millrace {}\n", MILLRACE_VERSION);
  return told();
}

// Of commands without settings: files for other commands fit, and `threads` has nothing to do.
struct NoSettings {
  config::Auto<int> threads{};
  void describe(config::Section& section) {
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

void check_inputs(const Command& command, const CommandLine& line) {
  for (const auto& setting : line.inputs.overrides)
    if (!setting.starts_with("threads="))
      throw Error(Exit::usage, fmt::format("{} has no settings: {}", command.name, setting),
                  fmt::format("millrace {} --help lists its options", command.name));
  NoSettings none;
  config::load(none, line.inputs).throw_if_problems();
}

int run(const std::vector<std::string>& arguments) {
  const auto commands = all_commands();
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    if (arguments.size() > 1 && arguments[1] == "man") {
      print_man_page(commands);
    } else if (arguments.size() > 1) {
      print_help(find_command(commands, arguments[1]), {});
    } else {
      print_overview(commands);
    }
    return told(arguments.empty() ? static_cast<int>(Exit::usage) : 0);
  }
  if (arguments[0] == "--version") return tell_version();
  if (arguments[0] == "--licenses") {
    print_licenses();
    return told();
  }
  const auto& command = find_command(commands, arguments[0]);
  auto line = parse_command_line({arguments.begin() + 1, arguments.end()}, command.options, command.takes_paths);
  line.command = command.name;
  if (line.version) return tell_version();
  if (command.heeds_signals) stop::install();  // before anything that takes time
  if (line.help) {
    print_help(command, *line.help);
    return told();
  }
  if (!command.on_ranks && !is_first_process()) return 0;  // one process does it
  if (!command.schema) check_inputs(command, line);
  if (!command.schema && line.print_config) {
    print_out("{}");
    return told();
  }
  const int code = command.run(line);
  return command.prints || line.print_config ? told(code) : code;
}

// Every rank of a launched run finds the same mistake in its command line; one report is enough.
bool is_reported_by_another(const Error& error) {
  return error.exit() == Exit::usage && !is_first_process();
}

// Launchers end all ranks once one has ended (srun -K at once, Open MPI 5's mpirun after half a second), and rank 0 may
// come later, as where LibTorch is read from a slow disk. Who is still there then speaks for itself: rank 0 has made no
// such mistake, or nobody is ended.
void leave_others_time_to_report() {
  std::this_thread::sleep_for(std::chrono::seconds(20));
}

// The next file that is opened gets the number of a stream that is closed, and what is printed would go into it, into a
// run's LEASE for one. Standard output is made one that cannot be written, so that commands that print notice.
void fill_closed_streams() {
  for (const auto& [stream, flags] :
       {std::pair{STDIN_FILENO, O_RDONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}}) {
    if (::fcntl(stream, F_GETFD) >= 0 || ::open("/dev/null", flags) >= 0) continue;
    std::perror("millrace: /dev/null");
    std::_Exit(static_cast<int>(Exit::io));
  }
}

// A GPU without memory in the middle of a training says nothing against its node: another start is as likely to go well
// there as anywhere.
std::optional<ForeignFault> translate_torch_error() {
  const auto error = present_torch_error();
  if (!error) return std::nullopt;
  return ForeignFault{*error, error->exit() == Exit::suspect_node && !tells_of_full_gpu(error->what())};
}

// Arrow's S3 client has to end before the process's static objects do.
struct S3Closer {
  ~S3Closer() { close_s3(); }
};

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;
  fill_closed_streams();  // before anything opens a file
  begin_without_openmp_settings(argv);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of that write (EFBIG), not of the process
  keep_freed_host_memory();
  ask_for_huge_pages();
  translate_foreign_errors(translate_torch_error);
  fault::tell_at_terminate();
  const S3Closer s3_closer;
  try {
    return run({argv + 1, argv + argc});
  } catch (...) {
    const Error error = present_error();
    if (is_reported_by_another(error)) leave_others_time_to_report();
    print_error(error);
    return static_cast<int>(error.exit());
  }
}
