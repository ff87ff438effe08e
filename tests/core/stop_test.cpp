#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "millrace/core/stop.h"

namespace millrace {
namespace {

// The flag is of the whole process and stays set, so each case runs in a process of its own.
template <class Body>
int exit_status_of(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Stop, EachSignalSetsTheFlag) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    EXPECT_EQ(exit_status_of([&] {
                stop::install();
                if (stop::requested()) return 1;
                ::raise(signal);
                return stop::requested() && stop::signal_number() == signal ? 0 : 2;
              }),
              0)
        << signal;
  }
}

TEST(Stop, TheFirstSignalIsRemembered) {
  EXPECT_EQ(exit_status_of([] {
              stop::install();
              stop::request(SIGUSR1);
              ::raise(SIGTERM);
              return stop::signal_number() == SIGUSR1 ? 0 : 1;
            }),
            0);
}

TEST(Stop, ASecondInterruptEndsTheProcess) {
  EXPECT_EQ(exit_status_of([] {
              stop::install();
              ::raise(SIGINT);
              ::raise(SIGINT);
              return 0;
            }),
            130);
}

TEST(Stop, TwoTerminationsDoNot) {
  EXPECT_EQ(exit_status_of([] {
              stop::install();
              ::raise(SIGTERM);
              ::raise(SIGTERM);
              return 0;
            }),
            0);
}

TEST(Stop, ABrokenPipeIsAnErrorOfTheWrite) {
  EXPECT_EQ(exit_status_of([] {
              stop::install();
              int ends[2];
              if (::pipe(ends) != 0) return 1;
              ::close(ends[0]);
              return ::write(ends[1], "x", 1) < 0 && errno == EPIPE ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace millrace
