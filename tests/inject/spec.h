#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// What to inject, where and when: one `--inject` of millrace_inject. README.md has the grammar.
namespace millrace::inject {

enum class Kind { kill, power, stop, abort, exit, hang, slow, eio, enospc, edquot, shorten, nosync, nan, flip };

// Groups of calls that look alike to the program.
enum class Call {
  open,
  create,
  list,
  read,
  write,
  fsync,
  close,
  rename,
  unlink,
  mkdir,
  truncate,
  mpi_init,
  mpi_send,
  mpi_receive,
  mpi_test,
  mpi_reduce,
  mpi_collective,
  mpi_gather,
  mpi_finalize
};

const char* name_of(Kind kind);
const char* name_of(Call call);

struct Spec {
  std::string text;  // as it was given
  Kind kind = Kind::kill;
  std::optional<int> rank;  // none: all
  std::optional<std::int64_t> step;
  std::string phase;         // empty: in all
  std::optional<Call> call;  // none: any
  std::string path;          // empty: of any file
  std::int64_t first = 1;    // the how manieth such call
  bool onwards = false;      // and all after it
  double seconds = 0;        // how long that lasts, 0 = for ever; of slow: what each call takes
};

// Throws std::invalid_argument.
Spec parse_spec(const std::string& text);

// Without what differs from run to run: names of temporary and event files.
std::string stable_name(const std::string& path);

// `part` is the end of `path`, or, where it ends in a slash, any part of it.
bool is_of(const std::string& path, const std::string& part);

extern const char* const grammar;

}  // namespace millrace::inject
