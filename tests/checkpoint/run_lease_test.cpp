#include "millrace/checkpoint/run_lease.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/core/files.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"

namespace {

std::atomic<int> answer_of_link = 0;  // an errno; 0 = as the system has it
std::atomic<int> calls_of_link = 0;

}  // namespace

// Before the C library's: the temporary folder's file system can link.
extern "C" int link(const char* from, const char* to) noexcept {
  ++calls_of_link;
  if (answer_of_link == 0) return ::linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
  errno = answer_of_link;
  return -1;
}

namespace millrace {
namespace {

using test::TempDir;

constexpr LeaseTimes quick = {.renewed_every = 0.05, .stale_after = 0.5};
// Longer than this machine may stand still, after which nobody here could tell a living owner from a dead one.
constexpr LeaseTimes patient = {.renewed_every = 0.05, .stale_after = 300};

nlohmann::json read_lease(const fs::path& folder) {
  return nlohmann::json::parse(read_file(folder / "LEASE"));
}

// As another instance on another machine has left it.
void write_foreign(const fs::path& folder, std::int64_t renewals, const nlohmann::json& changes = {}) {
  nlohmann::json lease = {{"nonce", "them"}, {"process", "elsewhere-17"}, {"host", "n7"}, {"job", 41}, {"restart", 0},
                          {"step", 0},       {"renewals", renewals}};
  lease.update(changes.is_null() ? nlohmann::json::object() : changes);
  std::ofstream(folder / "LEASE.them") << lease.dump();
  fs::rename(folder / "LEASE.them", folder / "LEASE");
}

// Renews a foreign lease until it is destroyed.
class Neighbour {
 public:
  explicit Neighbour(fs::path folder)
      : thread_([folder = std::move(folder)](const std::stop_token& stop) {
          for (std::int64_t renewals = 1; !stop.stop_requested(); ++renewals) {
            write_foreign(folder, renewals);
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
        }) {}

 private:
  std::jthread thread_;
};

TEST(RunLease, IsRenewedWhileItIsHeldAndGoneAfterwards) {
  const TempDir folder;
  {
    const auto lease = RunLease::acquire(Group(), folder.path(), quick);
    const auto first = read_lease(folder.path());
    EXPECT_EQ(first["nonce"], lease.nonce());
    EXPECT_EQ(first["process"], process_name());
    for (int i = 0; i < 200 && read_lease(folder.path())["renewals"] < 3; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_GE(read_lease(folder.path())["renewals"], 3);
    EXPECT_TRUE(lease.is_ours());
  }
  EXPECT_FALSE(fs::exists(folder.path() / "LEASE"));
}

// A renewal that comes late, from a node that was cut off, goes to the file that it renews, which is nobody's by then.
TEST(RunLease, IsRenewedInItsOwnFile) {
  const TempDir folder;
  const auto lease = RunLease::acquire(Group(), folder.path(), quick);
  fs::create_hard_link(folder.path() / "LEASE", folder.path() / "the same file");
  const auto renewals = [&](const char* name) {
    return nlohmann::json::parse(read_file(folder.path() / name))["renewals"].get<std::int64_t>();
  };
  for (int i = 0; i < 200 && renewals("LEASE") < 3; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(renewals("LEASE"), 3);
  EXPECT_TRUE(fs::equivalent(folder.path() / "LEASE", folder.path() / "the same file"));
}

TEST(RunLease, ALivingOwnerIsNamedAndKeepsTheFolder) {
  const TempDir folder;
  write_foreign(folder.path(), 0);
  const Neighbour neighbour(folder.path());
  const auto error = test::error_of([&] { RunLease::acquire(Group(), folder.path(), patient); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("in use by job 41 (process elsewhere-17 on n7)"), std::string::npos)
      << error.what();
}

TEST(RunLease, WhatNobodyRenewsIsTakenOver) {
  const TempDir folder;
  write_foreign(folder.path(), 12);
  const auto lease = RunLease::acquire(Group(), folder.path(), quick);
  EXPECT_EQ(read_lease(folder.path())["nonce"], lease.nonce());
}

// Cut short by a power failure, with foreign words in it, or changed by hand.
TEST(RunLease, WhatMakesNoSenseIsWatchedBeforeItIsTaken) {
  for (const char* text : {"", "{", "info step 3\n\"nonce\": 4}",
                           R"({"nonce": "", "process": "elsewhere-17", "host": "n7", "job": 0, "restart": 0, "step": 0,
                               "renewals": 1})"}) {
    const TempDir folder;
    folder.write("LEASE", text);
    const Stopwatch watch;
    const auto lease = RunLease::acquire(Group(), folder.path(), quick);
    EXPECT_GE(watch.seconds(), quick.stale_after) << text;
    EXPECT_EQ(read_lease(folder.path())["nonce"], lease.nonce());
  }
}

TEST(RunLease, WhatCannotBeReadIsWatchedBeforeItIsTaken) {
  const TempDir folder;
  fs::create_symlink("LEASE", folder.path() / "LEASE");  // ELOOP
  const Stopwatch watch;
  const auto lease = RunLease::acquire(Group(), folder.path(), quick);
  EXPECT_GE(watch.seconds(), quick.stale_after);
  EXPECT_EQ(read_lease(folder.path())["nonce"], lease.nonce());
}

TEST(RunLease, WhatMakesNoSenseAndChangesHasALivingOwner) {
  const TempDir folder;
  folder.write("LEASE", "info step 0");
  const std::jthread writer([&](const std::stop_token& stop) {
    for (int step = 1; !stop.stop_requested(); ++step) {
      folder.write("LEASE", "info step " + std::to_string(step));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const auto error = test::error_of([&] { RunLease::acquire(Group(), folder.path(), patient); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("in use by an owner that LEASE does not name"), std::string::npos)
      << error.what();
}

TEST(RunLease, AFileSystemThatCannotLinkFilesHasOwnersToo) {
  for (const int answer : {EPERM, ENOSYS, EOPNOTSUPP, EXDEV, EINVAL, EMLINK}) {
    const TempDir folder;
    answer_of_link = answer;
    calls_of_link = 0;
    EXPECT_NO_THROW({
      const auto lease = RunLease::acquire(Group(), folder.path(), patient);
      EXPECT_EQ(read_lease(folder.path())["nonce"], lease.nonce()) << answer;
    }) << answer;
    answer_of_link = 0;
    EXPECT_GT(calls_of_link, 0) << "this program's own is not asked";
  }
}

TEST(RunLease, ADiskWithoutRoomForItIsToldWithItsCure) {
  const TempDir folder;
  answer_of_link = ENOSPC;
  const auto error = test::error_of([&] { RunLease::acquire(Group(), folder.path(), patient); });
  answer_of_link = 0;
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(error.hint().find("its inodes are used up"), std::string::npos) << error.hint();
}

TEST(RunLease, AProcessOfThisMachineThatIsGoneNeedsNoWaiting) {
  const TempDir folder;
  const auto own = process_name();
  write_foreign(folder.path(), 0, {{"process", own.substr(0, own.find('-')) + "-4194999"}});  // beyond pid_max
  const Stopwatch watch;
  const auto lease = RunLease::acquire(Group(), folder.path(), patient);
  EXPECT_LT(watch.seconds(), 150);
}

// Eight starts at the same moment, of a free folder, of one with a damaged LEASE, and of one whose owner is gone.
TEST(RunLease, OneOfManyStartsAtOnceGetsTheFolder) {
  for (int round = 0; round < 20; ++round) {
    const TempDir folder;
    const bool is_damaged = round % 3 == 1;  // which is watched first
    const LeaseTimes times = {.renewed_every = 0.05, .stale_after = is_damaged ? 0.5 : patient.stale_after};
    if (is_damaged) {
      std::ofstream(folder.path() / "LEASE") << "{";
    } else if (round % 3 == 2) {
      const auto own = process_name();
      write_foreign(folder.path(), 0, {{"process", own.substr(0, own.find('-')) + "-4194999"}});
    }
    std::barrier at_once(8);
    std::mutex mutex;
    std::vector<RunLease> leases;
    std::vector<Exit> refused;
    {
      std::vector<std::jthread> starts;
      for (int i = 0; i < 8; ++i)
        starts.emplace_back([&] {
          at_once.arrive_and_wait();
          try {
            auto lease = RunLease::acquire(Group(), folder.path(), times);
            const std::lock_guard lock(mutex);
            leases.push_back(std::move(lease));
          } catch (const Error& error) {
            const std::lock_guard lock(mutex);
            refused.push_back(error.exit());
          }
        });
    }
    ASSERT_EQ(leases.size(), 1u) << "round " << round;
    EXPECT_EQ(refused.size(), 7u);
    for (const Exit exit : refused) EXPECT_TRUE(exit == Exit::usage || exit == Exit::requeue);
    EXPECT_TRUE(leases.front().is_ours());
    leases.clear();
    EXPECT_TRUE(fs::is_empty(folder.path()));
  }
}

TEST(RunLease, ARestartOfTheSameJobTakesOverAtOnceAndAnEarlierOneDoesNot) {
  const TempDir folder;
  write_foreign(folder.path(), 0, {{"restart", 1}});
  const Neighbour neighbour(folder.path());  // writes restart 0 from now on
  ::setenv("SLURM_JOB_ID", "41", 1);
  ::setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_NO_THROW(RunLease::acquire(Group(), folder.path(), patient));
  ::unsetenv("SLURM_RESTART_COUNT");
  while (!fs::exists(folder.path() / "LEASE")) std::this_thread::yield();
  EXPECT_EQ(test::error_of([&] { RunLease::acquire(Group(), folder.path(), patient); }).exit(), Exit::usage);
  ::unsetenv("SLURM_JOB_ID");
}

// The same command twice in one allocation, and a step that slurm/requeue.sh starts after one that was killed.
TEST(RunLease, ALaterStepTakesOverFromOneThatHasEndedSoonAndNotFromALivingOne) {
  const TempDir folder;
  ::setenv("SLURM_JOB_ID", "41", 1);
  ::setenv("SLURM_STEP_ID", "1", 1);
  write_foreign(folder.path(), 0);
  {
    const Neighbour neighbour(folder.path());  // step 0
    const LeaseTimes times = {.renewed_every = 100, .stale_after = 300};
    EXPECT_EQ(test::error_of([&] { RunLease::acquire(Group(), folder.path(), times); }).exit(), Exit::usage);
  }
  {  // nor from one whose renewals take their time
    const std::jthread late([&](const std::stop_token& stop) {
      for (int look = 1; !stop.stop_requested(); ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (look % 26 == 0) write_foreign(folder.path(), 1'000'000 + look);
      }
    });
    const LeaseTimes times = {.renewed_every = 2, .stale_after = 300};
    EXPECT_EQ(test::error_of([&] { RunLease::acquire(Group(), folder.path(), times); }).exit(), Exit::usage);
  }
  const Stopwatch watch;
  EXPECT_NO_THROW(RunLease::acquire(Group(), folder.path(), {.renewed_every = 0.2, .stale_after = 300}));
  EXPECT_LT(watch.seconds(), 150);
  ::unsetenv("SLURM_STEP_ID");
  ::unsetenv("SLURM_JOB_ID");
}

TEST(RunLease, WhoLosesItKnowsAndDoesNotTakeItBack) {
  const TempDir folder;
  {
    const auto lease = RunLease::acquire(Group(), folder.path(), {.renewed_every = 1000});
    write_foreign(folder.path(), 0);
    EXPECT_FALSE(lease.is_ours());
  }
  EXPECT_EQ(read_lease(folder.path())["nonce"], "them");
}

// Somebody has moved the whole folder: nobody has taken it over.
TEST(RunLease, WhoLosesItTellsWhatIsKnown) {
  const TempDir folder;
  const auto lease = RunLease::acquire(Group(), folder.path(), {.renewed_every = 1000});
  write_foreign(folder.path(), 0);
  EXPECT_EQ(lease.why_lost(), folder.path().string() + " has been taken over by job 41 (process elsewhere-17 on n7)");
  fs::remove(folder.path() / "LEASE");
  EXPECT_EQ(lease.why_lost(), (folder.path() / "LEASE").string() +
                                  " is gone: the folder was moved or removed, or another instance has had it and has "
                                  "ended");
}

TEST(RunLease, WhatCannotBeLookedAtIsNotLost) {
  const TempDir folder;
  const auto lease = RunLease::acquire(Group(), folder.path(), {.renewed_every = 1000});
  fs::create_symlink("LEASE", folder.path() / "itself");
  fs::rename(folder.path() / "itself", folder.path() / "LEASE");  // ELOOP
  EXPECT_TRUE(lease.is_ours());
}

// The one that took it over has ended and removed it: the folder is done with, and not ours again.
TEST(RunLease, WhatIsGoneIsNotMadeAgain) {
  const TempDir folder;
  EXPECT_EXIT(
      {
        const auto lease = RunLease::acquire(Group(), folder.path(), quick);
        fs::remove(folder.path() / "LEASE");
        const Stopwatch watch;
        while (!stop::requested() && watch.seconds() < 100) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::exit(stop::requested() && !fs::exists(folder.path() / "LEASE") ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace millrace
