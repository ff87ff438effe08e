// What goes wrong is told once, in words, and with its own exit code, however the program was started.
#include <gmock/gmock.h>

#include <regex>
#include <thread>

#include "e2e/program.h"
#include "millrace/core/cpu_quota.h"

namespace millrace::e2e {
namespace {

using testing::HasSubstr;

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

struct Mistake {
  const char* name;
  std::string settings;
  int exit_code;
  std::string said;
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

class Errors : public testing::TestWithParam<std::tuple<int, Mistake>> {};

// 0 ranks: without mpirun.
TEST_P(Errors, AreToldOnceWithTheirExitCode) {
  const auto& [ranks, mistake] = GetParam();
  auto settings = mistake.settings;
  for (std::size_t place; (place = settings.find("@")) != settings.npos;)
    settings.replace(place, 1, workshop().string());
  const auto command =
      (ranks == 0 ? "" : mpirun(ranks)) +
      train("x", std::string("'duration=1 steps' ") + (ranks == 3 ? "roles.producers=1 " : "") + settings);
  const auto outcome = shell("timeout 600 env " + command);
  EXPECT_EQ(outcome.exit_code, mistake.exit_code) << command << "\n" << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(mistake.said)) << command;
  EXPECT_EQ(count(outcome.output, "millrace: "), 1) << command << "\n" << outcome.output;
}

std::string name_of(const testing::TestParamInfo<Errors::ParamType>& info) {
  const int ranks = std::get<0>(info.param);
  return std::string(std::get<1>(info.param).name) + (ranks == 0 ? "_alone" : "_" + std::to_string(ranks));
}

INSTANTIATE_TEST_SUITE_P(
    All, Errors,
    testing::Combine(testing::Values(0, 3),
                     testing::Values(Mistake{"config_file_missing", "--config @/none.yaml", 74, "none.yaml"},
                                     Mistake{"unknown_option", "--fast", 2, "--fast"},
                                     Mistake{"unknown_key", "optim.lrr=1", 2, "optim.lrr"},
                                     Mistake{"wrong_combination", "batch.micro=9", 2, "8 is less than batch.micro = 9"},
                                     Mistake{"wrong_unit", "'guard.hang_timeout=3 steps'", 2, "guard.hang_timeout"},
                                     Mistake{"no_gpu", "run.device=cuda", 2, "run.device=cuda"},
                                     Mistake{"graphs_of_a_cpu", "model.cuda_graphs=true", 2, "model.cuda_graphs=true"},
                                     Mistake{"pipeline_missing", "model.pipeline=@/nowhere", 74, "nowhere"},
                                     Mistake{"unet_config_missing", "model.unet.config=@/unet.json", 74, "unet.json"},
                                     Mistake{"bad_roles", "roles.producers=9", 2, "roles.producers"},
                                     Mistake{"archive_missing", "data.train.path=@/no.tar", 74, "no.tar"},
                                     Mistake{"bad_validation", "data.validation.path=@/no.tar", 74, "no.tar"},
                                     Mistake{"stripes", "data.stripes=3", 2, "stripes"},
                                     Mistake{"run_folder_impossible", "run.dir=@/shapes/00000.tar/run", 74,
                                             "run.dir: "},
                                     Mistake{"checkpoint_missing", "checkpoint.resume=@/gone", 74, "gone"})),
    name_of);

// One that each stage of the start finds: settings, data, and the run's folder.
INSTANTIATE_TEST_SUITE_P(OneRank, Errors,
                         testing::Combine(testing::Values(1),
                                          testing::Values(Mistake{"unknown_key", "optim.lrr=1", 2, "optim.lrr"},
                                                          Mistake{"archive_missing", "data.train.path=@/no.tar", 74,
                                                                  "no.tar"},
                                                          Mistake{"run_folder_impossible",
                                                                  "run.dir=@/shapes/00000.tar/run", 74, "run.dir: "})),
                         name_of);

// Loading comes after the plan, and each role loads something else.
TEST(Errors, MissingWeightsAreToldOnce) {
  fs::copy(workshop() / "tiny", workshop() / "no-vae", fs::copy_options::recursive);
  fs::remove(workshop() / "no-vae/vae/diffusion_pytorch_model.safetensors");
  fs::copy(workshop() / "tiny", workshop() / "no-unet", fs::copy_options::recursive);
  fs::remove(workshop() / "no-unet/unet/diffusion_pytorch_model.safetensors");
  for (const std::string& launcher : {std::string(), mpirun(3)})
    for (const std::string part : {"vae", "unet"}) {
      const auto roles = launcher.empty() ? "" : " roles.producers=1";
      const auto outcome =
          shell(launcher +
                train("y", "'duration=1 steps' model.unet.init=pretrained model.pipeline=" + at("no-" + part) + roles));
      EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
      EXPECT_EQ(count(outcome.output, "no-" + part + "/" + part), 1) << outcome.output;
      EXPECT_EQ(count(outcome.output, "millrace: "), 1) << outcome.output;
    }
}

// The run's folder is open by then: who looks into it sees how the start ended.
TEST(Errors, ALogThatCannotBeOpenedIsToldInTheFolderToo) {
  fs::create_directories(workshop() / "no-log/log/rank-00001.log");
  const auto outcome = shell(mpirun(2) + train("no-log", "'duration=1 steps'"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_EQ(count(outcome.output, "millrace: "), 1) << outcome.output;
  const auto state = nlohmann::json::parse(read(workshop() / "no-log/STATE"));
  EXPECT_EQ(state["exit"], 74);
  EXPECT_THAT(state["reason"].get<std::string>(), HasSubstr("log/rank-00001.log"));
}

TEST(Errors, LengthsOfZeroAreRefused) {
  const auto outcome = shell(train(
      "zero", "'duration=0 steps' 'samples.every=0 steps' 'guard.digest_every=0 steps' 'validation.every=0 steps'"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  for (const char* key : {"duration", "samples.every", "guard.digest_every", "validation.every"})
    EXPECT_THAT(outcome.output, HasSubstr(std::string(key) + ": expected duration"));
  EXPECT_EQ(count(outcome.output, "> 0, got '0 steps'"), 4) << outcome.output;
}

// Weights that predict v must not be trained towards the noise by mistake.
TEST(Errors, PretrainedWeightsNeedTheirObjectiveUnlessItIsChosen) {
  fs::copy(workshop() / "tiny", workshop() / "of-v", fs::copy_options::recursive);
  const auto path = workshop() / "of-v/scheduler/scheduler_config.json";
  auto config = nlohmann::json::parse(read(path));
  config["prediction_type"] = "v_prediction";
  std::ofstream(path) << config;
  const std::string settings = "'duration=1 steps' model.unet.init=pretrained model.pipeline=" + at("of-v");
  const auto refused = shell(train("of-v-default", settings));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("objective.prediction: is not set"));
  EXPECT_FALSE(fs::exists(workshop() / "of-v-default"));
  for (const std::string chosen : {"v_prediction", "epsilon"}) {
    const auto taken = shell(train("of-v-" + chosen, settings + " objective.prediction=" + chosen));
    EXPECT_EQ(taken.exit_code, 0) << taken.output;
  }
}

// A compressed file feeds one stripe, whatever data.stripes says of the training data.
TEST(Errors, ValidationThatFeedsTooFewRanksIsNamed) {
  ASSERT_EQ(shell("gzip -c " + at("shapes/00003.tar") + " > " + at("held-out.tar.gz")).exit_code, 0);
  const std::string settings = "'duration=1 steps' validation.batches=1 data.validation.path=" + at("held-out.tar.gz");
  const auto refused = shell(mpirun(2) + train("too-few", settings));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("data.validation: its 1 archives feed 1 stripes, too few for 2 trainers"));
  const auto taken = shell(train("enough", settings));
  EXPECT_EQ(taken.exit_code, 0) << taken.output;
}

TEST(Errors, ARankThatNeverStartsIsNotWaitedForForEver) {
  const auto outcome =
      shell(mpirun(2) +
            "sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || exec sleep 60; exec \"$@\"' sh env MILLRACE_JOIN_SECONDS=2 " +
            train("never", "'duration=1 steps'"));
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("has waited 2 s for the other ranks to start"));
  const auto wrong =
      shell("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 MILLRACE_JOIN_SECONDS=soon " + train("never", ""));
  EXPECT_EQ(wrong.exit_code, 2) << wrong.output;
  EXPECT_THAT(wrong.output, HasSubstr("MILLRACE_JOIN_SECONDS is no number of seconds above 0: soon"));
}

TEST(Errors, ConfigurationsArePrintedOnce) {
  const auto outcome = shell(mpirun(3) + train("z", "--print-config"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(count(outcome.output, "shuffle_"), 1) << outcome.output;
}

int threads_a_rank(const std::string& command) {
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  std::smatch found;
  EXPECT_TRUE(std::regex_search(outcome.output, found, std::regex("([0-9]+) threads? a rank"))) << outcome.output;
  return found.empty() ? 0 : std::stoi(found[1]);
}

// Two ranks, each bound to its half of the cores, or each free to use all.
TEST(Threads, BoundAndUnboundRanksUseTheWholeMachine) {
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  const auto cores = shell("lscpu -p=core,socket | grep -v '^#' | sort -u | wc -l");
  const int half = std::stoi(cores.output) / 2;
  if (half < 1) GTEST_SKIP() << "needs two cores";
  if (!cpu_quotas().empty()) GTEST_SKIP() << "a control group may allow less than the whole machine";
  const auto dry_run = train("threads", "--dry-run");
  EXPECT_EQ(threads_a_rank(dry_run), cpus);
  EXPECT_EQ(threads_a_rank(mpirun(1) + dry_run), cpus);
  EXPECT_EQ(threads_a_rank(mpirun(2) + dry_run), cpus / 2);
  const auto bound =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 600 mpirun --mca orte_tmpdir_base " +
      workshop().string() + ".mpirun/bound --bind-to core --map-by slot:PE=" + std::to_string(half) + " -n 2 ";
  EXPECT_EQ(threads_a_rank(bound + dry_run), half * (cpus / std::stoi(cores.output)));
}

}  // namespace
}  // namespace millrace::e2e
