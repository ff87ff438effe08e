#include "millrace/comm/fault.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "millrace/comm/agree.h"
#include "millrace/core/deadline.h"
#include "millrace/core/files.h"
#include "millrace/core/phase.h"

namespace millrace::fault {
namespace {

constexpr double unwinding_seconds = 60;

std::mutex mutex;
std::optional<Reporter> reporter;
std::atomic<bool> reporting{false}, written{false};

}  // namespace

void report_to(Reporter where) {
  const std::lock_guard lock(mutex);
  reporter = std::move(where);
  reporting = true;
}

void write(const Error& error, const char* phase) {
  const std::lock_guard lock(mutex);
  if (!reporter || written.exchange(true)) return;
  const auto now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const nlohmann::ordered_json json = {{"rank", reporter->rank},     {"host", reporter->host},
                                       {"role", reporter->role},     {"phase", phase ? phase : phase::current.load()},
                                       {"step", phase::step.load()}, {"exit", static_cast<int>(error.exit())},
                                       {"reason", error.what()},     {"time", now}};
  try {
    const auto folder = reporter->run_dir / "fault";
    std::filesystem::create_directories(folder);
    write_file_atomically(folder / fmt::format("rank-{:05d}.json", reporter->rank),
                          json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (const std::exception&) {
  }
}

bool leaving() {
  const Error error = present_error();
  bool own = true, speaks = true;
  try {
    throw;
  } catch (const AgreedError& agreed) {
    own = false;
    speaks = agreed.group().rank() == 0;
  } catch (const RelayedError&) {
    own = speaks = false;
  } catch (...) {
  }
  if (!reporting) return speaks;
  leave_within(unwinding_seconds, error.exit(), error.what());  // first: a file system may be what hangs
  if (own && error.exit() != Exit::timeout) write(error);       // who waited in vain is not to blame
  return speaks;
}

}  // namespace millrace::fault
