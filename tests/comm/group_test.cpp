#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/foreign_errors.h"
#include "millrace/comm/group.h"
#include "millrace/comm/world.h"
#include "mpi_world.h"

namespace millrace {
namespace {

TEST(Group, ReducesOverAllRanks) {
  const auto group = test_world().group().duplicate();
  const int n = group.size(), r = group.rank();
  std::vector<double> sum = {1.0 * r, 0.5}, high = {1.0 * r};
  std::vector<std::int64_t> big = {std::int64_t{1} << 60, -r}, most = {r};
  group.all_reduce_sum(std::span(sum));
  group.all_reduce_max(std::span(high));
  group.all_reduce_sum(std::span(big));
  group.all_reduce_max(std::span(most));
  EXPECT_EQ(sum, (std::vector<double>{n * (n - 1) / 2.0, 0.5 * n}));
  EXPECT_EQ(high[0], n - 1);
  EXPECT_EQ(big, (std::vector<std::int64_t>{n * (std::int64_t{1} << 60), -n * (n - 1) / 2}));
  EXPECT_EQ(most[0], n - 1);
  EXPECT_EQ(group.largest(-r), 0);
  EXPECT_EQ(group.smallest(-r), 1 - n);
}

TEST(Group, BroadcastsFromAnyRoot) {
  const auto group = test_world().group();
  const int root = group.size() - 1;
  const std::string text = group.broadcast(group.rank() == root ? std::string("tri\0angle", 9) : "other", root);
  const std::string empty = group.broadcast(std::string(), 0);
  EXPECT_EQ(text, std::string("tri\0angle", 9));
  EXPECT_EQ(empty, "");
}

TEST(Group, GathersTextsOfDifferentLengths) {
  const auto group = test_world().group();
  const std::string mine(group.rank() * 3, static_cast<char>('a' + group.rank()));
  const auto at_root = group.gather_strings(mine);
  const auto everywhere = group.all_gather_strings(mine);
  std::vector<std::string> expected;
  for (int r = 0; r < group.size(); ++r) expected.emplace_back(r * 3, static_cast<char>('a' + r));
  EXPECT_EQ(everywhere, expected);
  EXPECT_EQ(at_root, group.is_root() ? expected : std::vector<std::string>{});
}

// More than one exchange holds.
TEST(Group, GathersLongTexts) {
  const auto group = test_world().group();
  const auto text_of = [](int rank) {
    std::string text(rank == 0 ? 5 : 40'000'000 + rank, static_cast<char>('a' + rank));
    for (std::size_t i = 0; i < text.size(); i += 1000) text[i] = static_cast<char>('A' + i / 1000 % 26);
    return text;
  };
  const auto mine = text_of(group.rank());
  const auto at_root = group.gather_strings(mine);
  const auto everywhere = group.all_gather_strings(mine);
  ASSERT_EQ(everywhere.size(), static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank)
    EXPECT_TRUE(everywhere[static_cast<std::size_t>(rank)] == text_of(rank)) << rank;
  EXPECT_TRUE(at_root == (group.rank() == 0 ? everywhere : std::vector<std::string>{}));
}

TEST(Group, SplitsByColorInTheOrderOfKeys) {
  const auto group = test_world().group();
  const auto half = group.split(group.rank() % 2, -group.rank());
  std::vector<double> members = {1};
  half.all_reduce_sum(std::span(members));
  const auto order = half.all_gather_strings(std::to_string(group.rank()));
  EXPECT_EQ(members[0], half.size());
  EXPECT_EQ(half.size(), (group.size() + 1 - group.rank() % 2) / 2);
  EXPECT_EQ(order[half.rank()], std::to_string(group.rank()));
  for (int i = 0; i + 1 < half.size(); ++i) EXPECT_GT(std::stoi(order[i]), std::stoi(order[i + 1]));
}

TEST(Group, AnyIsTrueWhenOneRankSaysSo) {
  const auto group = test_world().group();
  const bool none = group.any(false);
  const bool last = group.any(group.rank() == group.size() - 1);
  EXPECT_FALSE(none);
  EXPECT_TRUE(last);
}

TEST(Group, AgreeThrowsTheFirstErrorEverywhere) {
  const auto group = test_world().group();
  agree(group, std::nullopt);
  std::optional<Error> mine;
  if (group.rank() == group.size() - 1) mine.emplace(Exit::io, "cannot read \xff.tar", "mount it");
  try {
    agree(group, mine);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    const std::string where = group.size() > 1 ? "rank " + std::to_string(group.size() - 1) + ": " : "";
    EXPECT_EQ(std::string(error.what()).rfind(where + "cannot read", 0), 0u) << error.what();
    EXPECT_EQ(error.hint(), "mount it");
  }
}

// Logs, faults and hosts are found by it, and trainers need not be the first ranks.
TEST(Group, AgreeNamesTheRankInTheWorldInEveryGroup) {
  const auto world = test_world().group();
  const auto reversed = world.split(0, -world.rank());
  std::optional<Error> mine;
  if (world.rank() == 0) mine.emplace(Exit::io, "cannot read", "");
  try {
    agree(reversed, mine);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), world.size() > 1 ? "rank 0: cannot read" : "cannot read");
  }
  EXPECT_EQ(world_rank(), world.rank());
}

// What `call` throws on this rank, as "EXIT message (ranks that agreed)".
template <class Call>
std::string agreed_error_of(Call call) {
  try {
    call();
  } catch (const AgreedError& error) {
    return fmt::format("{} {} ({})", static_cast<int>(error.exit()), error.what(), error.group().size());
  }
  return "no error";
}

TEST(Agree, OnAllGivesEveryRankItsOwnResultOrTheFirstError) {
  const auto group = test_world().group();
  const int own = on_all(group, [&] { return group.rank() + 1; });
  int runs = 0;
  on_all(group, [&] { ++runs; });
  const auto all_fail = agreed_error_of([&] { on_all(group, [&] { fail(Exit::usage, "no GPU"); }); });
  const auto last_fails = agreed_error_of([&] {
    on_all(group, [&]() -> int {
      if (group.rank() == group.size() - 1) throw std::runtime_error("odd");
      return 0;
    });
  });
  EXPECT_EQ(own, group.rank() + 1);
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(all_fail, fmt::format("2 no GPU ({})", group.size()));
  const std::string where = group.size() > 1 ? fmt::format("rank {}: ", group.size() - 1) : "";
  EXPECT_EQ(last_fails, fmt::format("70 {}odd ({})", where, group.size()));
}

TEST(Agree, OnRootRunsOnceAndFailsEverywhere) {
  const auto group = test_world().group();
  std::int64_t runs = 0;
  on_root(group, [&] { ++runs; });
  group.all_reduce_sum(std::span(&runs, 1));
  const auto failed =
      agreed_error_of([&] { on_root(group, [] { static_cast<void>(std::filesystem::file_size("/no/such/file")); }); });
  EXPECT_EQ(runs, 1);
  EXPECT_NE(failed.find("74 "), failed.npos) << failed;
  EXPECT_NE(failed.find("/no/such/file"), failed.npos) << failed;
}

TEST(PresentError, OfALibraryIsWhatItsTranslatorSays) {
  struct Damaged : std::exception {};
  struct Crowded : std::exception {};
  translate_foreign_errors([]() -> std::optional<ForeignFault> {
    try {
      throw;
    } catch (const Damaged&) {
      return ForeignFault{Error(Exit::suspect_node, "damaged"), /*is_of_this_node=*/true};
    } catch (const Crowded&) {
      return ForeignFault{Error(Exit::suspect_node, "crowded"), /*is_of_this_node=*/false};
    } catch (...) {
      return std::nullopt;
    }
  });
  const auto exit_of = [](auto exception) {
    try {
      throw exception;
    } catch (...) {
      return present_error().exit();
    }
  };
  EXPECT_EQ(exit_of(Crowded()), Exit::suspect_node);
  EXPECT_FALSE(fault::is_this_rank_to_blame());
  EXPECT_EQ(exit_of(Damaged()), Exit::suspect_node);
  EXPECT_TRUE(fault::is_this_rank_to_blame());
  EXPECT_EQ(exit_of(std::runtime_error("x")), Exit::bug);
  EXPECT_EQ(exit_of(Error(Exit::io, "x")), Exit::io);
  translate_foreign_errors(nullptr);
  EXPECT_EQ(exit_of(Damaged()), Exit::bug);
}

TEST(PresentError, OfTheSystemHasACure) {
  const auto presented = [](auto exception) {
    try {
      throw exception;
    } catch (...) {
      return present_error();
    }
  };
  using std::make_error_code, std::errc;
  const auto thread = presented(std::system_error(make_error_code(errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.exit(), Exit::io);
  EXPECT_STREQ(thread.what(), "cannot start a thread");
  EXPECT_NE(thread.hint().find("ulimit -u"), std::string::npos) << thread.hint();
  EXPECT_EQ(presented(std::system_error(make_error_code(errc::operation_not_permitted))).exit(), Exit::bug);

  const auto path = presented(
      std::filesystem::filesystem_error("status", "run/checkpoints", make_error_code(errc::permission_denied)));
  EXPECT_EQ(path.exit(), Exit::io);
  EXPECT_STREQ(path.what(), "cannot access run/checkpoints: Permission denied");
  EXPECT_NE(path.hint().find("permissions"), std::string::npos) << path.hint();
  const auto nowhere =
      presented(std::filesystem::filesystem_error("current_path", make_error_code(errc::permission_denied)));
  EXPECT_NE(std::string(nowhere.what()).find("current_path"), std::string::npos) << nowhere.what();
}

TEST(Group, WaitingTooLongIsAnErrorThatNamesTheRank) {
  const auto world = test_world().group();
  const auto group = world.duplicate();
  if (group.size() == 1) GTEST_SKIP() << "needs another rank";
  std::string message;
  if (group.rank() == 0) {
    const double usual = group.time_limit();
    group.set_time_limit(0.05);
    try {
      group.barrier();
    } catch (const Error& error) {
      message = error.what();
      EXPECT_EQ(error.exit(), Exit::suspect_node);
    }
    group.set_time_limit(usual);  // which the world's other groups share
  }
  world.barrier();
  if (group.rank() == 0) {
    EXPECT_NE(message.find("rank 0"), std::string::npos) << message;
    EXPECT_NE(message.find("barrier"), std::string::npos) << message;
  } else {
    group.barrier();  // completes the one that rank 0 gave up on
  }
}

TEST(Group, AloneIsAGroupOfOne) {
  const Group group;
  group.barrier();
  EXPECT_EQ(group.size(), 1);
  EXPECT_EQ(group.all_gather_strings("x"), std::vector<std::string>{"x"});
  EXPECT_EQ(group.broadcast("text"), "text");
  EXPECT_EQ(group.split(3, 1).size(), 1);
}

}  // namespace
}  // namespace millrace
