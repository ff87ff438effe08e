#include "wait_for_others.h"

#include <utility>

#include "millrace/comm/backoff.h"
#include "millrace/comm/meanwhile.h"
#include "millrace/comm/world.h"
#include "millrace/core/error.h"
#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

// What the watchdog and metrics are told of a wait.
struct Waiting {
  explicit Waiting(const char* what) { phase::awaited = what; }
  ~Waiting() {
    phase::awaited = nullptr;
    phase::waited_seconds += since.seconds();
    ++phase::moves;
  }
  const Stopwatch since{};
};

thread_local std::function<void()> meanwhile;

}  // namespace

Meanwhile::Meanwhile(std::function<void()> work) {
  meanwhile = std::move(work);
}

Meanwhile::~Meanwhile() {
  meanwhile = nullptr;
}

void wait_for_others(const std::function<bool()>& done, double limit_seconds, const char* what) {
  const Waiting waiting(what);
  for (Backoff backoff; !done(); backoff.pause()) {
    if (meanwhile) meanwhile();
    if (backoff.awake_seconds() > limit_seconds) {
      throw Error(Exit::suspect_node,
                  fmt::format("rank {} waited {:.0f} s for the others in {}", world_rank(), limit_seconds, what),
                  "another rank hangs or has ended: its log tells where");
    }
  }
}

}  // namespace millrace
