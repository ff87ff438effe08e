#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/files.h"
#include "mpi_world.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using testing::HasSubstr;
using testing::Not;

// Of all ranks; the last one stands for a node of its own.
struct Place {
  const World& world = test_world();
  int last = world.size() - 1;
  bool apart = world.rank() == last;
  Deadline deadline{60, "the test hangs"};
  std::vector<std::string> hosts;
  Place() : hosts(static_cast<std::size_t>(world.size()), "n0") { hosts.back() = "n1"; }

  std::string suspect() const { return "rank " + std::to_string(last) + " on n1"; }
};

fs::path shared_folder(const Group& group) {
  std::string path = (fs::temp_directory_path() / "millrace-preflight-XXXXXX").string();
  if (group.rank() == 0) path = ::mkdtemp(path.data());
  return group.broadcast(path);
}

Error error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const AgreedError& error) {
    return error;
  }
  return Error(Exit::done, "none");
}

TEST(RunFolder, ANodeWithALocalOneIsNamed) {
  Place place;
  if (place.world.size() == 1) GTEST_SKIP() << "one rank";
  const auto folder = shared_folder(place.world.group()), run_dir = folder / (place.apart ? "local" : "mounted");
  fs::create_directories(run_dir);
  Error error(Exit::done, "");
  {
    Checkup checkup(place.world, place.hosts, place.deadline);
    ScratchFolder scratch;
    check_folder(checkup, "run folder", "run.dir", run_dir, scratch);
    error = error_of([&] { checkup.finish(); });
  }
  place.world.group().barrier();
  EXPECT_EQ(error.exit(), Exit::suspect_node);
  EXPECT_THAT(error.what(), HasSubstr(place.suspect() + ": run folder: "));
  EXPECT_TRUE(fs::is_empty(run_dir));
  place.world.group().barrier();
  if (place.world.rank() == 0) fs::remove_all(folder);
}

TEST(Demand, EndsTheCheckupForAllWhenOneRankFailsAlone) {
  Place place;
  Checkup checkup(place.world, place.hosts, place.deadline);
  const auto error = error_of([&] {
    checkup.demand("memory", 10, [&]() -> nlohmann::json {
      if (place.apart) fail(Exit::io, "out of memory");
      return true;
    });
  });
  // Alone it is what all ranks cannot do.
  EXPECT_EQ(error.exit(), place.world.size() == 1 ? Exit::io : Exit::suspect_node);
  EXPECT_THAT(error.what(), HasSubstr("out of memory"));
  if (place.world.size() > 1) {
    EXPECT_THAT(error.what(), HasSubstr(place.suspect()));
  }
}

TEST(Judgements, ThatThrowAreThrownOnAllRanks) {
  Place place;
  Checkup checkup(place.world, place.hosts, place.deadline);
  const auto error = error_of([&] {
    checkup.ask("loss", 10, [] { return true; });
    checkup.conclude([]() -> Row { fail(Exit::numerics, "no number"); });
  });
  EXPECT_EQ(error.exit(), Exit::numerics);
}

TEST(Checks, GoOnAfterASuspect) {
  Place place;
  if (place.world.size() == 1) GTEST_SKIP() << "one rank";
  Checkup checkup(place.world, place.hosts, place.deadline);
  checkup.ask("data", 10, [&]() -> nlohmann::json {
    if (place.apart) fail(Exit::io, "EIO");
    return true;
  });
  checkup.conclude([] { return Row{.detail = "read"}; });
  const auto answers = checkup.demand("next", 10, [&] { return checkup.rank() + 7; });
  EXPECT_EQ(answers[0].facts, 7);
  EXPECT_EQ(answers[place.last].facts, place.last + 7);
  EXPECT_THAT(error_of([&] { checkup.finish(); }).what(), HasSubstr(place.suspect() + ": data: EIO"));
}

// Of ranks 0 and 1 on n0, 2 and 3 on n1, where each sees the first GPU of its host.
Row judge_first_gpus(const Checkup& checkup, const Roles& roles) {
  Answers answers;
  for (const char* uuid : {"GPU-a", "GPU-a", "GPU-b", "GPU-b"}) {
    answers.emplace_back();
    answers.back().facts = {{"device", "H200"}, {"kind", "GPU"}, {"uuid", uuid}, {"free", 1 << 30}, {"share", 0.9}};
  }
  return judge_devices(checkup, answers, roles);
}

// No host is unlike the others, so nobody is suspect; NCCL does not join them all the same.
TEST(SharedGpus, OfTrainersEndTheCheckup) {
  Place place;
  Checkup checkup(place.world, {"n0", "n0", "n1", "n1"}, place.deadline);
  const auto error =
      error_of([&] { checkup.conclude([&] { return judge_first_gpus(checkup, all_in_one_roles(4)); }); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_THAT(error.what(), HasSubstr("ranks 0, 1 use the same GPU, GPU-a, and 2 of them train"));
}

// They would meet at sums of gradients, and wait for each other there.
TEST(Devices, ThatCannotTrainTogetherEndTheCheckup) {
  Place place;
  const Checkup checkup(place.world, {"n0", "n0"}, place.deadline);
  Answers answers(2);
  answers[0].facts = {{"device", "EPYC"}, {"kind", "CPU"}};
  answers[1].facts = {{"device", "H200"}, {"kind", "GPU"}, {"uuid", "GPU-a"}, {"free", 1 << 30}, {"share", 0.9}};
  EXPECT_TRUE(judge_devices(checkup, answers, all_in_one_roles(2)).ends);
  EXPECT_FALSE(judge_devices(checkup, answers, {.trainers = {1}, .producers = {0}}).ends);
}

TEST(SharedGpus, OfProducersOnOneOddHostEndNothing) {
  Place place;
  const Checkup checkup(place.world, {"n0", "n0", "n1", "n1", "n2", "n2"}, place.deadline);
  Answers answers;
  for (const char* uuid : {"GPU-a", "GPU-b", "GPU-c", "GPU-d", "GPU-e", "GPU-e"}) {
    answers.emplace_back();
    answers.back().facts = {{"device", "H200"}, {"kind", "GPU"}, {"uuid", uuid}, {"free", 1 << 30}, {"share", 0.9}};
  }
  const auto train_on = [&](std::vector<int> trainers, std::vector<int> producers) {
    return judge_devices(checkup, answers, {.trainers = std::move(trainers), .producers = std::move(producers)});
  };
  EXPECT_FALSE(train_on({0, 1, 2, 3}, {4, 5}).ends);
  EXPECT_TRUE(train_on({0, 1, 2, 3, 4, 5}, {}).ends) << "NCCL refuses them";
  EXPECT_FALSE(train_on({0, 1, 2, 3, 4, 5}, {}).suspects.empty());
}

TEST(SharedGpus, OfATrainerAndAProducerAreTold) {
  Place place;
  Checkup checkup(place.world, {"n0", "n0", "n1", "n1"}, place.deadline);
  const auto row = judge_first_gpus(checkup, {.trainers = {0, 2}, .producers = {1, 3}});
  EXPECT_THAT(row.detail, HasSubstr("up to 2 ranks share a GPU, which makes each slower"));
  EXPECT_TRUE(row.suspects.empty());
}

// As of two nodes whose lists of archives differ at their end.
TEST(Program, SettingsThatAreLargerThanAMessageAreCompared) {
  Place place;
  if (place.world.size() < 3) GTEST_SKIP() << "nobody is alone";
  std::string archives;
  for (int i = 0; i < 3000; ++i) archives += fmt::format("/{:0>100}.tar,", i);
  CommandLine line;
  line.inputs.overrides = {"run.dir=run", "model.pipeline=pipeline",
                           fmt::format("data.train.path=[{}{}.tar]", archives, place.apart ? "mine" : "last")};
  Checkup checkup(place.world, place.hosts, place.deadline);
  const auto error = error_of([&] { check_program(checkup, line); });
  EXPECT_EQ(error.exit(), Exit::suspect_node);
  EXPECT_THAT(error.what(),
              HasSubstr(place.suspect() + ": program: its configuration differs: data.train.path is [/000"));
  EXPECT_LT(std::string(error.what()).size(), 1000u);
}

TEST(Ask, AnAnswerThatIsLargerThanAMessageFailsOnItsRankAlone) {
  Place place;
  if (place.world.size() == 1) GTEST_SKIP() << "one rank";
  for (const bool is_error : {false, true}) {
    Checkup checkup(place.world, place.hosts, place.deadline);
    const auto error = error_of([&] {
      checkup.demand("memory", 10, [&]() -> nlohmann::json {
        const std::string large(1 << 20, 'x');
        if (place.apart && is_error) throw Error(Exit::io, large);
        return place.apart ? large : "";
      });
    });
    EXPECT_EQ(error.exit(), Exit::suspect_node);
    EXPECT_THAT(error.what(), HasSubstr(place.suspect() + ": memory: " +
                                        (is_error ? "xxx" : "its answer of 1024 KiB is larger than a message may be")));
  }
}

// As on hosts whose network does not carry MPI: what the lowest says of another one is said of it by a third.
TEST(Checks, BlameNobodyWhereAllHaveWaited) {
  Place place;
  if (place.world.size() == 1) GTEST_SKIP() << "one rank";
  Checkup checkup(place.world, place.hosts, place.deadline);
  const auto error = error_of([&] {
    checkup.demand("messages", 1, [&] {
      std::byte nothing{};
      checkup.receive((checkup.rank() + 1) % place.world.size(), std::span(&nothing, 1));
      return true;
    });
  });
  EXPECT_EQ(error.exit(), Exit::suspect_node);
  EXPECT_EQ(std::string(error.what()),
            fmt::format("none of {} ranks came to the end of the check \"messages\" within 1 s; rank 0 on n0: no "
                        "message from {}",
                        place.world.size(), checkup.name(1)));
  EXPECT_THAT(error.hint(), HasSubstr("which names no node"));
  EXPECT_THAT(error.hint(), Not(HasSubstr("leave that node out")));
}

// As in a sum of gradients: one breaks off, and the others wait for it in vain. A GPU that fails has the exit code of
// those who wait, and blames its own node.
TEST(Checks, NameWhoBrokeOffNotWhoWaited) {
  Place place;
  if (place.world.size() == 1) GTEST_SKIP() << "one rank";
  for (const bool is_gpu : {false, true}) {
    Checkup checkup(place.world, place.hosts, place.deadline);
    const auto error = error_of([&] {
      checkup.demand("gradients", 10, [&]() -> nlohmann::json {
        if (!place.apart) fail(Exit::suspect_node, "rank 0 has waited for the others");
        if (is_gpu) fault::blame_this_rank();  // for good: this test is the last one
        fail(is_gpu ? Exit::suspect_node : Exit::io, "it broke");
      });
    });
    EXPECT_EQ(error.exit(), Exit::suspect_node);
    EXPECT_EQ(std::string(error.what()), place.suspect() + ": gradients: it broke");
  }
}

}  // namespace
}  // namespace millrace::preflight
