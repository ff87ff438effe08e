// What a process that nobody has launched takes for its launcher. Not a test of ranks: mpirun's own variables come
// first.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "millrace/comm/launch_rank.h"
#include "millrace/comm/world.h"
#include "millrace/core/error.h"

namespace millrace {
namespace {

using Variables = std::map<std::string, std::string>;

// Nothing but these of all that launchers set; what was there before comes back.
class SetVariables {
 public:
  explicit SetVariables(const Variables& variables) {
    for (const char* name :
         {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "PMIX_RANK",
          "PMI_RANK", "PMI_SIZE", "PMI_ID", "PALS_RANKID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}) {
      if (const char* text = std::getenv(name)) before_[name] = text;
      unsetenv(name);
      known_.push_back(name);
    }
    for (const auto& [name, text] : variables) setenv(name.c_str(), text.c_str(), 1);
  }
  ~SetVariables() {
    for (const char* name : known_) unsetenv(name);
    for (const auto& [name, text] : before_) setenv(name.c_str(), text.c_str(), 1);
  }
  SetVariables(const SetVariables&) = delete;
  SetVariables& operator=(const SetVariables&) = delete;

 private:
  std::vector<const char*> known_;
  Variables before_;
};

// In a step of Slurm, whose variables say something else: what mpirun starts there has them, too.
Variables in_step(Variables variables) {
  variables.insert({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  return variables;
}

struct Launch {
  const char* name;
  Variables variables;
  int processes;
};

void PrintTo(const Launch& launch, std::ostream* out) {
  *out << launch.name;
}

class Launchers : public testing::TestWithParam<Launch> {};

TEST_P(Launchers, AreKnownByTheirVariables) {
  const auto& launch = GetParam();
  const SetVariables set(launch.variables);
  EXPECT_EQ(launch_rank(), "3");
  EXPECT_EQ(launched_processes(), launch.processes);
  EXPECT_TRUE(is_launched_for_mpi());
  EXPECT_TRUE(World::launched());
}

INSTANTIATE_TEST_SUITE_P(
    Known, Launchers,
    testing::Values(
        Launch{"OpenMpi", in_step({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "9"}}),
               4},
        Launch{"Mvapich", {{"MV2_COMM_WORLD_RANK", "3"}, {"MV2_COMM_WORLD_SIZE", "4"}, {"PMI_ID", "3"}}, 4},
        Launch{"Hydra", in_step({{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}), 4},
        Launch{"Pmix", {{"PMIX_RANK", "3"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}}, 5},
        Launch{"PmixWithoutSlurm", {{"PMIX_RANK", "3"}}, 0},
        Launch{"CrayBeforeSlurm2302", {{"PALS_RANKID", "3"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "5"}}, 5}),
    [](const auto& launch) { return std::string(launch.param.name); });

// A number of processes alone is of a shell that somebody has started by a launcher.
TEST(Launch, IsNothingWhereNobodyLaunches) {
  const SetVariables set({{"PMI_SIZE", "4"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}});
  EXPECT_EQ(launch_rank(), std::nullopt);
  EXPECT_EQ(launched_processes(), 0);
  EXPECT_FALSE(is_launched_for_mpi());
  EXPECT_FALSE(World::launched());
}

TEST(Launch, OpenMpiUnderSrunWithoutAPluginIsRefused) {
  if (!mpi_version().starts_with("Open MPI")) GTEST_SKIP() << mpi_version() << " finds the others by what srun says";
  const SetVariables set({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(launch_rank(), "1");
  try {
    World();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("2 tasks"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace millrace
