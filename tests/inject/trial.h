#pragma once
#include <functional>
#include <string>
#include <vector>

#include "site.h"
#include "storm/process.h"
#include "storm/workshop.h"

// One life with a fault, and the life after it: what the trials of all commands have in common.
namespace millrace::inject {

using storm::Command;
using storm::Troubles;

// What all trials share.
struct Workshop : storm::Workshop {
  fs::path injecting;         // the program with faults
  fs::path archives, tables;  // the same rows in tars and in Parquet files
  std::vector<int> cores;     // that lives may use, each of them one
};

// Of the data: so many files of so many rows, all of them good.
constexpr int data_files = 2, rows_per_data_file = 16;

Workshop open_workshop(const fs::path& millrace, const fs::path& injecting, const std::vector<int>& cores);

struct Trial {
  std::string name;                                     // what begins how, and its faults
  std::function<Troubles(const fs::path& folder)> run;  // what is wrong with it; `folder` is the trial's own
};

enum class Start { fresh, resumed };

struct Life {
  Command command;
  storm::Ending ending;
  std::string output;
};

// From the command's start to its end; after the workshop's limit it is ended. What it says goes to
// `folder`/`name`.out.
Life live(const Workshop& workshop, Command command, const fs::path& folder, const std::string& name);
// Throws unless the life ended with 0.
void expect_success(const Life& life);

// Hands a fault, or count=FOLDER, to a command of the program with faults.
void inject(Command& command, const std::string& what);

// The calls by which `ranks` ranks of `command`, a command of the program with faults, change what lies in `changed`.
std::vector<Site> count_calls(const Workshop& workshop, Command command, int ranks, const fs::path& changed,
                              const fs::path& folder);

// What a sweep tries at a call.
std::vector<Kind> kinds_at(const Site& site);
bool is_deadly(Kind kind);

// Exit codes that a life with a fault may end with; none: any but 0.
using ExitCodes = std::vector<int>;

// Whether the fault came and the life ended with one of these codes, leaving no process behind.
Troubles check_end(const Life& faulty, const ExitCodes& expected);

// The commands of both lives and the end of what they said, for a person who looks for the cause.
std::string describe(const Life& faulty, const Life& next);

}  // namespace millrace::inject
