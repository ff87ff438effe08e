// preflight: what it says about a healthy set-up, and which rank it names when one is not like the others.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "e2e/runs.h"
#include "millrace/core/process_name.h"

namespace millrace::e2e {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// The settings of a training run, tried.
std::string preflight(const std::string& run, const std::string& settings) {
  auto command = train(run, "'duration=4 steps' " + settings);
  return command.replace(command.find(" train "), 7, " preflight ");
}

// Two ranks with one command, the third with another.
std::string two_and_one(const std::string& most, const std::string& third) {
  return mpirun(2) + most + " : -n 1 " + third;
}

// Names and contents of everything in a folder.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> content;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    content[entry.path().string()] = entry.is_directory() ? "" : read(entry.path());
  return content;
}

// The line of the table about `check`.
std::string row(const Outcome& outcome, const std::string& check) {
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  " + check + " ")) return line;
  return {};
}

void expect_row(const Outcome& outcome, const std::string& check, const std::string& result) {
  EXPECT_THAT(row(outcome, check), MatchesRegex("  " + check + " +" + result + " .*")) << outcome.output;
}

// 76, with the rank on stderr's last words and in the table.
void expect_suspect(const Outcome& outcome, const std::string& check, int rank, const std::string& why) {
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_row(outcome, check, "SUSPECT");
  const auto words = outcome.output.substr(std::min(outcome.output.size(), outcome.output.find("\nmillrace: ")));
  EXPECT_THAT(words, HasSubstr("millrace: rank " + std::to_string(rank) + " on ")) << outcome.output;
  EXPECT_THAT(words, HasSubstr(why)) << outcome.output;
  EXPECT_THAT(words, HasSubstr("hint: ")) << outcome.output;
  for (int other = 0; other < 3; ++other)
    if (other != rank) {
      EXPECT_THAT(words, Not(HasSubstr("millrace: rank " + std::to_string(other)))) << outcome.output;
    }
}

const char* const all_checks[] = {"program", "clocks",   "machines",  "devices",  "model folder", "plan", "run folder",
                                  "data",    "messages", "gradients", "encoders", "step",         "space"};

// The third rank works in a folder of its own, as nodes have disks of their own under the same path.
std::string on_two_nodes(const std::string& settings, const std::string& program = millrace) {
  const auto at = [&](const std::string& node) {
    fs::create_directories(workshop() / node);
    return "sh -c \"cd " + (workshop() / node).string() + " && exec " + program +
           preflight("x", settings).substr(millrace.size()) + "\"";
  };
  return two_and_one(at("node0"), at("node1"));
}

std::string piped(const std::string& on_rank_2) {
  return "roles.producers=1 data.stripes=4 data.allow_pipes=true 'data.train.path=pipe:if [ $OMPI_COMM_WORLD_RANK = 2 "
         "]; then " +
         on_rank_2 + "; fi; cat " + (workshop() / "shapes").string() + "/{00000..00003}.tar'";
}

struct Timed {
  Outcome outcome;
  double seconds = 0;
};

// These three mostly wait: they do so while the other tests run.
struct Waiting {
  std::future<Timed> server_down, stopped, silent;
  Waiting() {
    const auto start = [](const std::string& command) {
      return std::async(std::launch::async, [command]() -> Timed {
        const auto begin = std::chrono::steady_clock::now();
        const auto outcome = shell(command);
        return {outcome, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
      });
    };
    const auto reading_settings = on_two_nodes("run.dir=silent --config settings.yaml");
    std::ofstream(workshop() / "node0/settings.yaml") << "optim: {lr: 1e-3}\n";
    ::mkfifo((workshop() / "node1/settings.yaml").c_str(), 0600);  // nobody writes into it
    server_down =
        start(mpirun(2) + preflight("down", "data.stripes=4 'data.train.path=http://127.0.0.1:1/{00000..00003}.tar'"));
    stopped = start(mpirun(3) + preflight("stopped", piped("kill -STOP $PPID")));
    silent = start(reading_settings);
  }
};
Waiting& waiting() {
  static Waiting waiting;
  return waiting;
}

TEST(Preflight, AHealthyAllocationPassesEveryCheck) {
  const auto outcome = shell(mpirun(3) + preflight("fresh", "roles.producers=1"));
  waiting();  // not before: a rank that others keep from its core for 20 s counts as silent
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const std::string check : all_checks) expect_row(outcome, check, "ok");
  EXPECT_THAT(row(outcome, "step"), HasSubstr("micro-batch of 2")) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("weights equal on 2 trainers"));
  EXPECT_THAT(outcome.output, HasSubstr("all is well"));
  EXPECT_FALSE(fs::exists(workshop() / "fresh")) << "the run folder did not exist before";
}

TEST(Preflight, EveryRankMayTrainAndProduce) {
  for (const std::string strategy : {"ddp", "shard_grad_op"}) {
    const auto outcome = shell(mpirun(2) + preflight("fresh", "parallel.strategy=" + strategy));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_row(outcome, "step", "ok");
  }
}

TEST(Preflight, OneProcessAloneChecksItself) {
  const auto outcome = shell(preflight("fresh", ""));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const std::string check : {"program", "machines", "run folder", "data", "step", "space"})
    expect_row(outcome, check, "ok");
  for (const std::string check : {"clocks", "messages", "gradients"}) expect_row(outcome, check, "not used");
  EXPECT_FALSE(fs::exists(workshop() / "fresh"));
}

// Of which a living run may be the owner.
TEST(Preflight, ARunFolderStaysAsItIs) {
  expect_success(train("trained", "'duration=4 steps'"));
  std::ofstream(workshop() / "trained/LEASE") << "{\"nonce\": \"of a living run\"}\n";
  const auto before = content_of(workshop() / "trained");
  const auto outcome = shell(mpirun(3) + preflight("trained", "roles.producers=1"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(content_of(workshop() / "trained"), before);
  fs::rename(workshop() / "trained/checkpoints", workshop() / "elsewhere");
  const auto lost = shell(preflight("trained", ""));
  EXPECT_EQ(lost.exit_code, 74) << lost.output;
  EXPECT_THAT(lost.output, HasSubstr("is their disk mounted?"));
}

// The name of a process of this machine that has ended.
std::string name_of_the_dead() {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto name = process_name();
    ::_exit(::write(ends[1], name.data(), name.size()) == static_cast<ssize_t>(name.size()) ? 0 : 1);
  }
  ::waitpid(child, nullptr, 0);
  std::string name(256, '\0');
  name.resize(static_cast<std::size_t>(::read(ends[0], name.data(), name.size())));
  ::close(ends[0]);
  ::close(ends[1]);
  return name;
}

TEST(Preflight, WhatAKilledOneLeftIsRemoved) {
  const auto dead = workshop() / "left" / (".preflight-" + name_of_the_dead()),
             living = workshop() / "left" / (".preflight-" + process_name());
  fs::create_directories(dead / "rank-00000");
  fs::create_directories(living);
  const auto outcome = shell(preflight("left", ""));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living));
}

TEST(Preflight, MistakesAreToldAsTrainTellsThem) {
  const auto at = [](const std::string& name) { return (workshop() / name).string(); };
  struct Mistake {
    std::string settings;
    int exit_code;
  };
  for (const auto& [settings, exit_code] :
       {Mistake{"data.train.path=" + at("no.tar"), 74}, Mistake{"model.pipeline=" + at("nowhere"), 74},
        Mistake{"optim.lrr=1", 2}, Mistake{"run.device=cuda", 2}, Mistake{"roles.producers=9", 2}}) {
    const auto words = [](const Outcome& outcome) {  // without those of mpirun behind them
      const auto begin = std::min(outcome.output.size(), outcome.output.find("millrace: "));
      return outcome.output.substr(begin, outcome.output.find("\n---", begin) - begin);
    };
    const auto launcher = exit_code == 74 ? mpirun(3) : std::string();
    const auto tried = shell("timeout 600 env " + launcher + preflight("mistaken", settings)),
               trained = shell("timeout 600 env " + launcher + train("mistaken", "'duration=4 steps' " + settings));
    EXPECT_EQ(tried.exit_code, exit_code) << tried.output;
    EXPECT_FALSE(words(tried).empty()) << tried.output;
    EXPECT_EQ(words(tried), words(trained)) << settings;
    EXPECT_FALSE(fs::exists(workshop() / "mistaken"));
  }
}

TEST(Preflight, ARunFolderThatCannotBeWrittenIsNamed) {
  const auto folder = (workshop() / "shapes/00000.tar/run").string();
  const auto outcome = shell(mpirun(3) + preflight("x", "roles.producers=1 run.dir=" + folder));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("millrace: run.dir: cannot write in " + folder));
  const auto cache = shell(mpirun(3) + preflight("y", "roles.producers=1 encode.cache=" + folder));
  EXPECT_EQ(cache.exit_code, outcome.exit_code) << cache.output;
  EXPECT_THAT(cache.output, HasSubstr("millrace: encode.cache: cannot write in " + folder));
  expect_row(outcome, "run folder", "failed");
}

TEST(Preflight, ARankWithOtherSettingsIsNamed) {
  const auto outcome = shell(two_and_one(preflight("x", ""), preflight("x", "optim.lr=5e-4")));
  expect_suspect(outcome, "program", 2, "optim.lr is 0.0005, elsewhere 0.001");
}

TEST(Preflight, ARankWithABrokenConfigurationIsNamed) {
  const auto outcome = shell(two_and_one(preflight("x", ""), preflight("x", "optim.lrr=5e-4")));
  expect_suspect(outcome, "program", 2, "optim.lrr");
}

TEST(Preflight, ARankWithAnotherBinaryIsNamed) {
  const auto other = workshop() / "millrace-of-yesterday";
  fs::copy_file(millrace, other);
  std::ofstream(other, std::ios::app) << "one byte more";
  auto command = preflight("x", "");
  command.replace(0, millrace.size(), other.string());
  expect_suspect(shell(two_and_one(preflight("x", ""), command)), "program", 2, "another binary");
}

TEST(Preflight, ARankThatSeesAnotherPipelineFolderIsNamed) {
  fs::copy(workshop() / "tiny", workshop() / "stale", fs::copy_options::recursive);
  fs::remove(workshop() / "stale/unet/diffusion_pytorch_model.safetensors");
  const auto command = on_two_nodes("model.pipeline=pipeline");
  fs::create_directory_symlink(workshop() / "tiny", workshop() / "node0/pipeline");
  fs::create_directory_symlink(workshop() / "stale", workshop() / "node1/pipeline");
  expect_suspect(shell(command), "model folder", 2, "lacks unet/diffusion_pytorch_model.safetensors");
}

// Its VAE has other weights, and what it gets of the others' parts of a tensor has other signs than they sent.
TEST(Preflight, ARankThatComputesOtherwiseIsNamed) {
  fs::copy(workshop() / "tiny", workshop() / "other-vae", fs::copy_options::recursive);
  const auto weights = workshop() / "other-vae/vae/diffusion_pytorch_model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  const auto bytes = static_cast<std::streamoff>(fs::file_size(weights));
  file.seekp(bytes / 4);
  file << std::string(static_cast<std::size_t>(bytes / 2), '\0');
  file.close();
  const auto command =
      on_two_nodes("model.pipeline=their-vae parallel.strategy=full_shard",
                   "env MILLRACE_INJECT=flip@2:*:mpi-gather:1+ " + std::string(MILLRACE_INJECT_BINARY));
  fs::create_directory_symlink(workshop() / "tiny", workshop() / "node0/their-vae");
  fs::create_directory_symlink(workshop() / "other-vae", workshop() / "node1/their-vae");
  const auto outcome = shell(command);
  expect_suspect(outcome, "gradients", 2, "its sum of all trainers' gradients is wrong in ");
  expect_suspect(outcome, "encoders", 2, "its moments are ");
  expect_suspect(outcome, "step", 2, "its loss is ");
  expect_suspect(outcome, "step", 2, "its weights differ from the others' after the same step");
}

TEST(Preflight, EncodingsThatAreReadNeedNoEncoders) {
  const auto cache = (workshop() / "preflight-cache").string();
  auto preprocess = train("preflight-cached", "encode.cache=" + cache);
  preprocess.replace(preprocess.find(" train "), 7, " preprocess ");
  ASSERT_EQ(shell(preprocess).exit_code, 0);
  const auto outcome = shell(preflight("fresh", "data.train.type=latents data.train.path=" + cache));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_row(outcome, "encoders", "not used");
}

TEST(Preflight, ARankWithoutTheConfigurationOfTheModelIsNamed) {
  const auto command = on_two_nodes("model.unet.config=unet.json");
  fs::copy_file(workshop() / "tiny/unet/config.json", workshop() / "node0/unet.json");
  expect_suspect(shell(command), "model folder", 2, "model.unet.config: ");
}

TEST(Preflight, ARankWithARunFolderOfItsOwnIsNamed) {
  const auto outcome = shell(on_two_nodes("run.dir=run"));
  expect_suspect(outcome, "run folder", 2, "run/.preflight-");
  EXPECT_FALSE(fs::exists(workshop() / "node0/run"));
  EXPECT_FALSE(fs::exists(workshop() / "node1/run"));
}

TEST(Preflight, ARankThatCannotReadAnArchiveIsNamed) {
  // All have the library, so that only what it does is different.
  const std::string library = "env LD_PRELOAD=" MILLRACE_FAULTS " ";
  const auto command = preflight("x", "data.index=never 'data.retry_for=1 s'");
  const auto outcome =
      shell(two_and_one(library + command, library + "MILLRACE_FAULT='5:0:1000:shapes/0000' " + command));
  expect_suspect(outcome, "data", 2, "EIO");
  EXPECT_THAT(outcome.output, HasSubstr("can read it)"));
  expect_row(outcome, "step", "ok");  // the other checks are made all the same
}

TEST(Preflight, AnArchiveThatNobodyCanReadIsNoRanksFault) {
  const auto outcome =
      shell(mpirun(3) + "env LD_PRELOAD=" MILLRACE_FAULTS " MILLRACE_FAULT='5:0:1000:shapes/00002.tar' " +
            preflight("x", "data.index=never data.stripes=4 roles.producers=1 'data.retry_for=1 s'"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("shapes/00002.tar: read failed for 1 s: EIO"));
}

// A run would try for five minutes.
TEST(Preflight, AServerThatIsDownIsToldWithItsAddress) {
  const auto [outcome, seconds] = waiting().server_down.get();
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("millrace: http://127.0.0.1:1/00000.tar: read failed for 5 s"));
  EXPECT_LT(seconds, 250) << outcome.output;
}

TEST(Preflight, ARankThatIsStoppedIsNamed) {
  const auto [outcome, seconds] = waiting().stopped.get();
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("millrace: rank 2 on ")) << outcome.output;
  expect_row(outcome, "data", "HANGS");
  EXPECT_LT(seconds, 600) << outcome.output;
  EXPECT_FALSE(fs::exists(workshop() / "stopped"));
}

TEST(Preflight, ARankWhoseStorageDoesNotAnswerIsNamed) {
  const auto [outcome, seconds] = waiting().silent.get();
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("millrace: rank 2 on ")) << outcome.output;
  EXPECT_THAT(row(outcome, "program"), ContainsRegex("has not answered for [2-9][0-9] s")) << outcome.output;
  expect_row(outcome, "program", "HANGS");
  EXPECT_LT(seconds, 600) << outcome.output;
}

TEST(Preflight, ASignalEndsItAndNothingStays) {
  const auto outcome = shell(mpirun(3) + preflight("x", piped("kill -TERM $PPID")));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_FALSE(fs::exists(workshop() / "x"));
}

TEST(Preflight, ADryRunStopsBehindThePlan) {
  const auto outcome = shell(mpirun(3) + preflight("x", "roles.producers=1 --dry-run"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_row(outcome, "plan", "ok");
  EXPECT_THAT(row(outcome, "run folder"), testing::IsEmpty());
}

}  // namespace
}  // namespace millrace::e2e
