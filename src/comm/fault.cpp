#include "millrace/comm/fault.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "millrace/comm/agree.h"
#include "millrace/core/clock.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/leave.h"
#include "millrace/core/phase.h"
#include "millrace/core/run_files.h"

namespace millrace::fault {
namespace {

constexpr double unwinding_seconds = 60;

// Set before any other thread may ask; outlives the static objects of libraries.
std::optional<Reporter>& self = *new std::optional<Reporter>;
std::atomic<bool> written{false}, is_to_blame{false};

std::filesystem::path file_of(const Reporter& rank) {
  return rank.run_dir / run_file::fault / (rank_name(rank.rank) + ".json");
}

// About the exception that is being handled.
bool is_of_this_rank_alone() {
  try {
    throw;
  } catch (const AgreedError&) {
    return false;
  } catch (const RelayedError&) {
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace

void report_to(Reporter where) {
  self = std::move(where);
}

void remove_earlier(const std::filesystem::path& run_dir) {
  std::error_code ignored;
  std::filesystem::remove_all(run_dir / run_file::fault, ignored);
}

void write_about(const Reporter& rank, const Error& error, const char* phase, std::int64_t step) {
  if (written.exchange(true)) return;
  const double now = unix_seconds();
  nlohmann::ordered_json json = {
      {"rank", rank.rank},      {"host", rank.host}, {"role", rank.role},
      {"phase", phase},         {"step", step},      {"exit", static_cast<int>(error.exit())},
      {"reason", error.what()}, {"time", now},       {"at", utc_of(static_cast<std::time_t>(now))}};
  if (!rank.gpu.empty()) json["gpu"] = rank.gpu;
  try {
    std::filesystem::create_directories(rank.run_dir / run_file::fault);
    write_file_atomically(file_of(rank), dump_any(json, 2) + "\n");
  } catch (const std::exception&) {
  }
}

void forget() {
  is_to_blame = false;
  if (!self || !written.exchange(false)) return;
  std::error_code ignored;
  std::filesystem::remove(file_of(*self), ignored);
}

void write(const Error& error) {
  if (self) write_about(*self, error, phase::current, phase::step);
}

void write_own(const Error& error) {
  if (error.exit() != Exit::suspect_node || is_to_blame) write(error);
}

bool is_this_rank_to_blame() {
  return is_to_blame;
}

void blame_this_rank() {
  is_to_blame = true;
}

void begin_leaving() {
  const Error error = present_error();
  if (!self) return;
  leave_within(unwinding_seconds, error.exit(), error.what());  // first: a file system may be what hangs
  const bool is_of_numbers = error.exit() == Exit::bad_data || error.exit() == Exit::numerics;  // all agree on these
  if (is_of_this_rank_alone() || (is_of_numbers && speaks_for_run())) write_own(error);
}

// Nothing is unwound any more, and MPI is left to the launcher.
[[noreturn]] static void end_now() {
  static std::atomic<bool> is_ending{false};
  thread_local bool is_here = false;
  if (!std::current_exception() || std::exchange(is_here, true)) std::abort();
  while (is_ending.exchange(true)) ::pause();  // another thread has the word, and ends the process
  const Error error = present_error();
  leave_within(unwinding_seconds, error.exit(), error.what());
  write_own(error);
  const auto who = self ? fmt::format("rank {} on {}: ", self->rank, self->host) : "";
  const auto line = fmt::format("millrace: {}{}\n", who, error.what());
  [[maybe_unused]] const auto told = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(static_cast<int>(error.exit()));
}

void tell_at_terminate() {
  std::set_terminate(end_now);
}

bool speaks_for_run() {
  try {
    throw;
  } catch (const AgreedError& agreed) {
    return agreed.group().is_root();
  } catch (const RelayedError&) {
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace millrace::fault
