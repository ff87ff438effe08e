#include "trial.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "storm/archives.h"

namespace millrace::inject {
namespace {

void write_data(const fs::path& folder, storm::Archives kind) {
  storm::Case drawn;
  drawn.seed = 7;
  drawn.data.archives = kind;
  drawn.data.rows.assign(data_files, rows_per_data_file);
  storm::write_archives(drawn, folder);
}

std::string last_lines(const std::string& text, std::size_t bytes) {
  return text.size() <= bytes ? text : "..." + text.substr(text.size() - bytes);
}

}  // namespace

Workshop open_workshop(const fs::path& millrace, const fs::path& injecting, const std::vector<int>& cores) {
  Workshop workshop{storm::open_workshop(millrace, "millrace-sweep"), injecting, {}, {}, cores};
  workshop.archives = workshop.folder / "archives";
  workshop.tables = workshop.folder / "tables";
  write_data(workshop.archives, storm::Archives::tar);
  write_data(workshop.tables, storm::Archives::parquet);
  return workshop;
}

Life live(const Workshop& workshop, Command command, const fs::path& folder, const std::string& name) {
  const auto output = folder / (name + ".out"), temporary = folder / "tmp";
  fs::create_directories(temporary);
  storm::Job job(command, output, temporary);
  const auto ending = job.wait(workshop.limit, [](storm::Job&) {});
  return {std::move(command), ending, read_file(output)};
}

void expect_success(const Life& life) {
  if (life.ending.exit_code != 0) fail(Exit::bug, "{}\n{}", life.command.text(), life.output);
}

void inject(Command& command, const std::string& what) {
  command.words.insert(command.words.end(), {"--inject", what});
}

std::vector<Site> count_calls(const Workshop& workshop, Command command, int ranks, const fs::path& changed,
                              const fs::path& folder) {
  const auto counts = folder / "counts";
  fs::create_directories(counts);
  inject(command, "count=" + counts.string());
  expect_success(live(workshop, std::move(command), folder, "count"));
  return read_sites(counts, ranks, changed);
}

std::vector<Kind> kinds_at(const Site& site) {
  const auto is_one_of = [&](std::initializer_list<Call> calls) { return std::ranges::count(calls, site.call) > 0; };
  std::vector<Kind> kinds = {Kind::eio};
  const bool takes_room = !is_one_of({Call::unlink, Call::close});
  if (takes_room) kinds.push_back(Kind::enospc);
  // Killed in a sync or a close the next call finds what it finds.
  if (!is_one_of({Call::fsync, Call::close})) kinds.push_back(Kind::kill);
  if (!is_one_of({Call::close, Call::mkdir})) kinds.push_back(Kind::power);
  return kinds;
}

bool is_deadly(Kind kind) {
  return kind == Kind::kill || kind == Kind::power;
}

Troubles check_end(const Life& faulty, const ExitCodes& expected) {
  const auto& ending = faulty.ending;
  if (ending.timed_out) return {"hangs\n" + ending.picture};
  Troubles troubles;
  for (const auto& survivor : ending.survivors) troubles.push_back("left behind: " + survivor);
  if (faulty.output.find("millrace_inject: rank") == std::string::npos) troubles.push_back("the fault never came");
  const bool is_right = expected.empty() ? ending.exit_code != 0 : std::ranges::count(expected, ending.exit_code) > 0;
  if (!is_right) troubles.push_back(fmt::format("exit {}", ending.exit_code));
  return troubles;
}

std::string describe(const Life& faulty, const Life& next) {
  return fmt::format("\n  $ {}\n{}\n  $ {}\n{}", faulty.command.text(), last_lines(faulty.output, 2500),
                     next.command.text(), last_lines(next.output, 1500));
}

}  // namespace millrace::inject
