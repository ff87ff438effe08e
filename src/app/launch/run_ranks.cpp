#include "launch/run_ranks.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <thread>

#include "launch/deadline.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/io/hdf5.h"
#include "output.h"

namespace millrace {
namespace {

constexpr double usual_join_seconds = 600;  // all ranks load LibTorch, often from one file server
constexpr double last_words_seconds = 10;

// By all ranks of `world`, so that none of them waits for another.
bool is_everybodys(const AgreedError& error, const World& world) {
  return error.group().size() == world.size();
}

// One of those who agree speaks for all; the others wait until it has, since whoever aborts first ends it as well.
void report_agreed(const AgreedError& error, const World& world) {
  if (error.group().is_root()) {
    print_error(error);
  } else {
    log::close_console();
    log::error("{}", error.what());
  }
  if (is_everybodys(error, world)) return;  // ~World waits for all
  try {
    error.group().set_time_limit(last_words_seconds);
    error.group().barrier();
  } catch (const Error&) {
  }
}

// The rank that has the error ends all as soon as it has unwound and said so.
void wait_for_the_end(const RelayedError& error) {
  log::close_console();
  log::error("{}", error.what());
  log::flush();
  std::this_thread::sleep_for(std::chrono::duration<double>(last_words_seconds));
}

void report_own(const Error& error, const World& world) {
  print_error(error, world.size() == 1 ? "" : fmt::format("rank {} on {}", world.rank(), world.host()));
}

int leave(const World& world, Exit exit, bool in_order) {
  if (!in_order) world.abort(exit);
  return static_cast<int>(exit);
}

}  // namespace

// MPI_Init knows no limit.
static std::optional<Deadline> limit_joining() {
  if (!World::launched()) return std::nullopt;
  const double seconds = join_seconds(usual_join_seconds);
  return std::make_optional<Deadline>(
      seconds, fmt::format("{} has waited {:.0f} s for the other ranks to start", this_process(), seconds));
}

double join_seconds(double usual) {
  const char* text = std::getenv("MILLRACE_JOIN_SECONDS");
  if (!text) return usual;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end == '\0' && seconds > 0 && std::isfinite(seconds)) return seconds;
  throw Error(Exit::usage, fmt::format("MILLRACE_JOIN_SECONDS is no number of seconds above 0: {}", text),
              "write seconds, such as 1800, or unset it");
}

int run_ranks(const std::function<int(World&)>& command) {
  auto joining = limit_joining();
  begin_hdf5();
  World world;
  joining.reset();
  try {
    return command(world);
  } catch (const AgreedError& error) {
    report_agreed(error, world);
    return leave(world, error.exit(), is_everybodys(error, world));
  } catch (const RelayedError& error) {
    wait_for_the_end(error);
    report_own(error, world);
    world.abort(error.exit());
  } catch (...) {
    const Error error = present_error();
    report_own(error, world);
    return leave(world, error.exit(), world.size() == 1);
  }
}

}  // namespace millrace
