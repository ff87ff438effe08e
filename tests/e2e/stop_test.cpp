// Ways for a run to stop before its end, and whom a run folder belongs to: whatever happens, the state of the last step
// is saved where a trainer can still do so, STATE and RUN/fault say why, and the next start repeats and loses nothing.
#include <map>

#include "e2e/runs.h"
#include "millrace/core/process_name.h"

namespace millrace::e2e {
namespace {

constexpr int steps = 100'000;  // more than a run makes before it is stopped, on any machine
const std::string settings =
    "roles.producers=1 'duration=" + std::to_string(steps) + " steps' 'checkpoint.every=100000 steps' ";
// For start(): mpirun kills what it has told to end after 5 s, not after one. Only Open MPI 4's: later ones do so after
// a quarter of a second, whatever is set.
const std::string patient = "OMPI_MCA_odls_base_sigkill_timeout=5 ";
bool mpirun_may_be_patient() {
  return shell("mpirun --version").output.find("(Open MPI) 4.") != std::string::npos;
}

// Shell text: starts a run of two trainers and one producer, rank 2. `$run` is its process, `rank R SIGNAL` sends to a
// rank of it. MILLRACE_INJECT in the environment: with these faults.
std::string start(const std::string& run, const std::string& more, const std::string& environment = "") {
  const auto dir = workshop() / run;
  fs::create_directories(dir);
  auto command = train(run, settings + more);
  if (environment.find("MILLRACE_INJECT=") != environment.npos)
    command = MILLRACE_INJECT_BINARY + command.substr(millrace.size());
  std::ofstream(dir / "rank.sh") << "echo $$ > " + (dir / "pid").string() + ".$OMPI_COMM_WORLD_RANK\nexec " + command +
                                        "\n";
  return "rank() { kill -$2 $(cat " + (dir / "pid").string() + ".$1); }; " + "timeout 600 env " + environment + " " +
         mpirun(3) + "sh " + (dir / "rank.sh").string() + " & run=$!; ";
}

std::string at_step(const std::string& run, int step) {
  return wait_for(workshop() / run / "metrics.jsonl", "\"step\":" + std::to_string(step) + ",") + "; ";
}

nlohmann::json state(const std::string& run) {
  return nlohmann::json::parse(read(workshop() / run / "STATE"));
}

int last_step(const std::string& run) {
  const auto logged = lines(workshop() / run / "metrics.jsonl");
  if (!logged.empty()) return logged.back()["step"];
  ADD_FAILURE() << run << " has logged no step";
  return -1;
}

// Shell text: tells the last step that the run has logged so far.
std::string tell_step(const std::string& run) {
  return "printf 'so far: %s\\n' \"$(tail -n 1 " + (workshop() / run / "metrics.jsonl").string() + ")\"; ";
}

// The step of the run's state, which a signal behind tell_step() has ended: that one, or the one it was in by then.
void expect_ended_at_once(const std::string& run, const Outcome& outcome) {
  const std::string words = "so far: ";
  const auto at = outcome.output.find(words + "{");
  ASSERT_NE(at, std::string::npos) << outcome.output;
  const auto begin = at + words.size();
  const auto line = nlohmann::json::parse(outcome.output.substr(begin, outcome.output.find('\n', begin) - begin));
  EXPECT_LE(state(run)["step"].get<int>(), line["step"].get<int>() + 2) << run;
}

// A run with `more` settings that never stopped, made once.
std::string straight(const std::string& more) {
  static std::map<std::string, std::string> made;
  const auto [found, is_new] = made.try_emplace(more, "straight-" + std::to_string(made.size()));
  if (is_new) expect_success(mpirun(3) + train(found->second, settings + more));
  return found->second;
}

// The run, which was stopped at step `at`, is resumed for some steps more, and equals one that never stopped.
void expect_no_trace_of_the_stop(const std::string& run, int at, const std::string& more = "") {
  const auto duration = more + "'duration=" + std::to_string(at + 5) + " steps'";
  expect_success(mpirun(3) + train(run, settings + duration));
  const auto reference = straight(duration);
  EXPECT_EQ(state(run)["state"], "done");
  EXPECT_EQ(lines(workshop() / run / "ids.jsonl"), lines(workshop() / reference / "ids.jsonl"));
  EXPECT_EQ(read(weights_of(run)), read(weights_of(reference)));
}

TEST(Stop, ATrainerThatWaitsForSamplesLeavesAtTheStepsBorder) {
  const auto outcome =
      shell(start("waiting", "") + at_step("waiting", 3) + "rank 2 STOP; sleep 3; " + tell_step("waiting") +
            "rank 1 USR1; " + wait_for(workshop() / "waiting/STATE", "requeue") + "; rank 2 CONT; wait $run");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_EQ(outcome.output.find("never stood in"), outcome.output.npos) << outcome.output;
  EXPECT_EQ(state("waiting")["state"], "requeue");
  EXPECT_EQ(state("waiting")["step"], last_step("waiting"));
  expect_ended_at_once("waiting", outcome);
  EXPECT_EQ(state("waiting")["reason"], "signal 10 (User defined signal 1)");
  expect_no_trace_of_the_stop("waiting", state("waiting")["step"]);
}

// The set is larger than can be encoded; a trainer is told, or the producer.
TEST(Stop, WhileTheValidationSetIsEncoded) {
  const std::string validation = "'validation.every=1 steps' validation.batches=1000000 data.validation.path=" +
                                 (workshop() / "shapes/00003.tar").string() + " ";
  for (const std::string rank : {"0", "2"}) {
    const auto run = "validating-" + rank;
    const auto outcome = shell(start(run, validation) + wait_for(workshop() / run / "STATE", "running") +
                               "; sleep 2; rank " + rank + " TERM; wait $run");
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    EXPECT_EQ(state(run)["state"], "requeue");
    EXPECT_EQ(state(run)["step"], 0);
  }
  const auto alone = signal_once(train("validating-alone", settings + "roles.producers=auto " + validation), "TERM",
                                 workshop() / "validating-alone/STATE", "running");
  EXPECT_EQ(shell(alone).exit_code, 75);
}

// Of what is due after step 3, most of which is never done: a trainer stands still where it begins, and goes on with
// the signal to stop. Where forward is collective all trainers must give up at the same turn.
void expect_given_up(const std::string& name, const std::string& what, const std::string& strategy,
                     const std::string& phase) {
  std::string run = name;
  int took = 30;
  for (int time = 0; time < 2 && took >= 30; ++time) {  // one may meet a pause of this machine
    if (time > 0) run = name + "-again";
    const auto process = "/proc/$(cat " + (workshop() / run / "pid.1").string() + ")/status";
    const auto outcome =
        shell(start(run, what + strategy, "MILLRACE_INJECT=stop@1:3:" + phase + "/mpi-collective") + at_step(run, 2) +
              wait_for(process, "State:.T") + "; began=$(date +%s); rank 1 USR1; rank 1 CONT; wait $run; code=$?; " +
              "echo took $(($(date +%s) - began)) s; (exit $code)");
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    const auto at = outcome.output.find("took ");
    ASSERT_NE(at, std::string::npos) << outcome.output;
    took = std::stoi(outcome.output.substr(at + 5));
  }
  EXPECT_LT(took, 30) << "what Slurm gives a job that is cancelled";
  EXPECT_EQ(state(run)["state"], "requeue");
  EXPECT_EQ(state(run)["step"], 3) << "the step that was reached";
  for (const auto& line : lines(workshop() / run / "metrics.jsonl"))
    EXPECT_FALSE(line.contains("validation_loss")) << "of a part of the set: " << line;
  EXPECT_FALSE(fs::exists(workshop() / run / "samples"));
  expect_no_trace_of_the_stop(run, 3, strategy);
}

const std::string split = "parallel.strategy=full_shard ", whole = "parallel.strategy=shard_grad_op ";

TEST(Stop, ALongValidationIsGivenUp) {
  const auto validation = "'validation.every=3 steps' validation.batches=200 data.validation.path=" +
                          (workshop() / "shapes/00003.tar").string() + " ";
  expect_given_up("validates", validation, whole, "validating");
  expect_given_up("validates-split", validation, split, "validating");
}

TEST(Stop, PicturesAreGivenUp) {
  const auto prompts = workshop() / "prompts.txt";
  std::ofstream(prompts) << "a red circle\n";
  const auto pictures =
      "'samples.every=3 steps' samples.count=16 samples.steps=900 samples.prompts=" + prompts.string() + " ";
  expect_given_up("paints", pictures, whole, "painting");
  expect_given_up("paints-split", pictures, split, "painting");
}

TEST(Stop, ASilentProducerIsNamedAndCostsNoStep) {
  const auto outcome =
      shell(start("silent", "'guard.hang_timeout=4 s'", patient) + at_step("silent", 3) + "rank 2 STOP; wait $run");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "from the producer on rank 2 for 4 s (host ");
  expect_mentions(outcome, "guard.hang_timeout");
  EXPECT_EQ(state("silent")["state"], "requeue");
  EXPECT_EQ(state("silent")["step"], last_step("silent"));
  EXPECT_FALSE(checkpoints("silent").empty());
  EXPECT_FALSE(fs::exists(workshop() / "silent/DONE"));
  const auto fault = nlohmann::json::parse(read(workshop() / "silent/fault/rank-00002.json"));
  EXPECT_EQ(fault["role"], "producer");
  EXPECT_EQ(fault["exit"], 76);
  EXPECT_FALSE(fault["host"].get<std::string>().empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(workshop() / "silent/fault"), {}), 1) << "nobody else is to blame";
  expect_no_trace_of_the_stop("silent", state("silent")["step"]);
  EXPECT_FALSE(fs::exists(workshop() / "silent/fault")) << "a new start has a clean record";
}

// mpirun tells the others to end, and kills them 5 s later. Where it has no such patience, the steps since the last
// checkpoint are computed again.
TEST(Stop, AKilledProducerCostsNoStep) {
  const auto outcome = shell(start("dead", "", patient) + at_step("dead", 3) + "rank 2 KILL; wait $run");
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  if (mpirun_may_be_patient()) {
    EXPECT_EQ(state("dead")["state"], "requeue");
    EXPECT_EQ(state("dead")["step"], last_step("dead"));
  }
  expect_no_trace_of_the_stop("dead", state("dead")["step"]);
}

TEST(Stop, AProducerThatFailsLetsTheTrainersSaveFirst) {
  const auto bad = workshop() / "unreadable";
  fs::create_directories(bad);
  for (int i = 0; i < 4; ++i) {
    const auto name = "0000" + std::to_string(i) + ".tar";
    fs::copy_file(workshop() / "shapes" / name, bad / name, fs::copy_options::overwrite_existing);
  }
  // All of it is replaced by other bytes once the run has begun.
  const auto outcome = shell(
      start("failing", "data.max_bad_share=0.1 data.train.path=" + bad.string() + " encode.batch_size=2", patient) +
      at_step("failing", 3) + "for f in " + bad.string() + "/*.tar; do head -c $(stat -c %s $f) /dev/zero | tr " +
      "'\\0' x > $f.x && cat $f.x > $f; done; rm " + bad.string() + "/*.x; wait $run");
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.exit_code, 75) << outcome.output;
  EXPECT_EQ(state("failing")["step"], last_step("failing")) << outcome.output;
  EXPECT_TRUE(state("failing")["state"] == "failed" || state("failing")["state"] == "requeue") << state("failing");
  EXPECT_FALSE(state("failing")["reason"].get<std::string>().empty());
}

TEST(Stop, TheJobsTimeLimitIsActedOnUnasked) {
  std::string run;
  Outcome outcome;
  for (const std::string seconds : {"45", "90", "180"}) {  // half a minute of which is kept back
    run = "limit-" + seconds;
    outcome = shell(start(run, "", "MILLRACE_END_TIME=$(( $(date +%s) + " + seconds + " ))") + "wait $run");
    const bool was_too_slow = lines(workshop() / run / "metrics.jsonl").empty() ||
                              outcome.output.find("is in the past") != outcome.output.npos;
    if (!was_too_slow) break;
  }
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_EQ(state(run)["state"], "requeue");
  EXPECT_EQ(state(run)["reason"], "the job's time limit");
  EXPECT_EQ(state(run)["step"], last_step(run));
}

TEST(State, SaysRunningWithTheLastCheckpointAfterAKill) {
  const auto outcome =
      shell(start("killed", "'checkpoint.every=2 steps'") + wait_for(workshop() / "killed/STATE", "step-00000004") +
            "; for r in 0 1 2; do rank $r KILL; done; wait $run");
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_EQ(state("killed")["state"], "running");
  EXPECT_GE(state("killed")["step"], 4);
  EXPECT_TRUE(fs::exists(state("killed")["checkpoint"].get<std::string>()));
}

TEST(Stop, TheTerminalCloses) {
  const auto alone = train("closed", "'duration=100000 steps' 'checkpoint.every=100000 steps'");
  // It stands still between the look at its steps and the signal.
  const auto outcome = shell(alone + " & run=$!; " + at_step("closed", 2) + "kill -STOP $run; " + tell_step("closed") +
                             "kill -HUP $run; kill -CONT $run; wait $run");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  EXPECT_EQ(state("closed")["state"], "requeue");
  EXPECT_EQ(state("closed")["step"], last_step("closed"));
  expect_ended_at_once("closed", outcome);
  const auto ignoring = train("ignoring", "'duration=12 steps'");
  const auto whole = shell("nohup " + ignoring + " & run=$!; " + at_step("ignoring", 2) + "kill -HUP $run; wait $run");
  EXPECT_EQ(whole.exit_code, 0) << whole.output;
}

// A file that is opened then would get the console's number.
TEST(Stop, NotForAConsoleThatIsClosedWhoseLinesGoNowhere) {
  const auto run = workshop() / "silenced";
  const auto outcome =
      shell(train("silenced", "'duration=20 steps'") + " >&- 2>&- & run=$!; " + at_step("silenced", 2) + "ln " +
            (run / "LEASE").string() + " " + (run / "kept").string() + "; wait $run");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(nlohmann::json::accept(read(run / "kept"))) << read(run / "kept");
}

TEST(Stop, NotForAConsoleThatCannotBeWritten) {
  const auto run = train("unheard", "'duration=5 steps'");
  EXPECT_EQ(shell(run + " > /dev/full 2> /dev/full").exit_code, 0);
  EXPECT_EQ(state("unheard")["state"], "done");
  const auto gone = train("unread", "'duration=20 steps'");
  EXPECT_EQ(shell("{ " + gone + "; echo $? > " + (workshop() / "code").string() + "; } 2>&1 | head -n 1 > " +
                  (workshop() / "line").string())
                .exit_code,
            0);
  EXPECT_EQ(read(workshop() / "code"), "0\n");
}

TEST(Owner, ASecondInstanceIsRefusedAndAKilledOneIsSucceededAtOnce) {
  const auto second = mpirun(3) + train("owned", settings);
  const auto outcome = shell(start("owned", "") + at_step("owned", 2) + "{ " + second + "; } > " +
                             (workshop() / "second.txt").string() + " 2>&1; echo second $?; rank 0 USR1; wait $run");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  expect_mentions(outcome, "second 2");
  const auto said = read(workshop() / "second.txt");
  EXPECT_NE(said.find("is in use by process"), std::string::npos) << said;
  EXPECT_EQ(state("owned")["step"], last_step("owned"));

  shell(start("owned", "") + "sleep 0.1; " + wait_for(workshop() / "owned/LEASE", "nonce") +
        "; for r in 0 1 2; do rank $r KILL; done; wait $run");
  ASSERT_TRUE(fs::exists(workshop() / "owned/LEASE"));
  expect_no_trace_of_the_stop("owned", state("owned")["step"]);
  EXPECT_FALSE(fs::exists(workshop() / "owned/LEASE"));
}

// The owner before is not heard of any more, but writes one more checkpoint, and ends.
TEST(Owner, ACheckpointThatAppearsWhileTheFolderIsWaitedForEndsTheStart) {
  const auto newest = checkpoint("awaited", 2).string(), aside = newest + ".aside",
             lease = (workshop() / "awaited/LEASE").string(), said = (workshop() / "awaited.txt").string();
  expect_success(train("awaited", "'duration=2 steps' 'checkpoint.every=1 steps'"));
  const auto own_name = process_name();
  const nlohmann::json owner = {{"nonce", "of-another"}, {"process", own_name.substr(0, own_name.find('-')) + "-PID"},
                                {"host", "n7"},          {"job", 0},
                                {"restart", 0},          {"step", 0},
                                {"renewals", 0}};
  const auto outcome = shell("mv " + newest + " " + aside + "; sleep 900 & owner=$!; echo '" + owner.dump() +
                             "' | sed s/PID/$owner/ > " + lease + "; " + train("awaited", "'duration=3 steps'") +
                             " > " + said + " 2>&1 & run=$!; " + wait_for(said, "waiting up to") + "; mv " + aside +
                             " " + newest + "; kill $owner; wait $run");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output << read(said);
  EXPECT_NE(read(said).find(newest + " has appeared while this start was made ready"), std::string::npos) << read(said);
}

const std::string state_of_another = "{\"state\": \"running\"}\n";

// How a run of one rank ends that these faults stop for a while, in which another instance takes its folder over and
// writes a checkpoint; it goes on with the signal to end.
Outcome lose_folder(const std::string& run, const std::string& faults, const std::string& more) {
  return shell("env MILLRACE_INJECT='" + faults + "' " + MILLRACE_INJECT_BINARY +
               train(run, more).substr(millrace.size()) + " & run=$!; " + wait_for("/proc/$run/status", "State:.T") +
               "; cd " + (workshop() / run).string() +
               "; sed 's/\"nonce\": \"/&of-another-/' LEASE > taken && mv taken LEASE; printf '" + state_of_another +
               "' > STATE; mkdir checkpoints/step-00000099; kill -USR1 $run; kill -CONT $run; wait $run");
}

void expect_left_to_the_other(const std::string& run) {
  EXPECT_EQ(read(workshop() / run / "STATE"), state_of_another);
  EXPECT_NE(read(workshop() / run / "LEASE").find("of-another-"), std::string::npos);
  EXPECT_TRUE(fs::exists(checkpoint(run, 99)));
  EXPECT_FALSE(fs::exists(workshop() / run / "fault"));
}

// Stopped where it is about to look whether the folder is still its own, with the lines of step 3 in hand.
TEST(Owner, WhoHasLostTheFolderWritesNothingMoreThere) {
  const auto outcome = lose_folder("lost", "stop@0:3:open=LEASE", settings + "roles.producers=auto");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "has been taken over by");
  expect_left_to_the_other("lost");
  EXPECT_EQ(checkpoints("lost"), std::set<std::string>{"step-00000099"});
  EXPECT_EQ(last_step("lost"), 2);
  EXPECT_EQ(lines(workshop() / "lost/ids.jsonl").size(), 2u);
  EXPECT_FALSE(fs::exists(workshop() / "lost/ledger.json"));
}

// The first update throws the weights out of all proportion, and the two bad steps behind it are one too many.
TEST(Owner, WhoHasLostTheFolderDoesNotGoBackThere) {
  const auto outcome = lose_folder("lost-going-back", "stop@0:3:loading/open=LEASE",
                                   "'duration=9 steps' 'checkpoint.every=1 steps' optim.lr=1e30 guard.max_skips=1 "
                                   "guard.on_repeat=rollback");
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  expect_mentions(outcome, "has been taken over by");
  expect_left_to_the_other("lost-going-back");
  EXPECT_FALSE(fs::exists(workshop() / "lost-going-back/rollback.json"));
}

TEST(OwnerMinutes, WhoHasLostTheFolderTellsOfNoHangThere) {
  const auto outcome = lose_folder("lost-hanging", "stop@0:3:accounting/open=LEASE hang@0:3:accounting/open=LEASE",
                                   "'duration=9 steps' 'guard.hang_timeout=4 s'");
  EXPECT_EQ(outcome.exit_code, 76) << outcome.output;
  expect_mentions(outcome, "rank 0 on ");
  expect_left_to_the_other("lost-hanging");
}

TEST(Timeline, WhatTheUserWentBackFromIsSetAsideAndNeverContinued) {
  const std::string often = "roles.producers=1 'checkpoint.every=3 steps' checkpoint.keep=9 ";
  expect_success(mpirun(3) + train("back", often + "'duration=12 steps'"));
  const auto ids = lines(workshop() / "back/ids.jsonl");
  const auto weights = read(weights_of("back"));
  expect_success(mpirun(3) +
                 train("back", often + "'duration=8 steps' checkpoint.resume=" + checkpoint("back", 6).string()));
  EXPECT_EQ(state("back")["step"], 8);
  int aside = 0;
  for (const auto& name : checkpoints("back")) aside += name.find(".abandoned-") != name.npos;
  EXPECT_EQ(aside, 2) << "steps 9 and 12";
  int lines_aside = 0;
  for (const auto& entry : fs::directory_iterator(workshop() / "back"))
    lines_aside += entry.path().filename().string().starts_with("ids.jsonl.beyond-step-00000006.abandoned-");
  EXPECT_EQ(lines_aside, 1);
  const auto again = shell(mpirun(3) + train("back", often + "'duration=12 steps'"));
  EXPECT_EQ(again.exit_code, 0) << again.output;
  expect_mentions(again, "/back: 4 *.abandoned-* there and in checkpoints, of times that are not continued, take ");
  EXPECT_EQ(lines(workshop() / "back/ids.jsonl"), ids);
  EXPECT_EQ(read(weights_of("back")), weights);
}

}  // namespace
}  // namespace millrace::e2e
