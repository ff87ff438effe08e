// The loop with a small task in place of the U-Net's, on 1 and 2 ranks: what a skipped step leaves as it was, when the
// guards end a run, when checkpoints are due.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <thread>

#include "error_of.h"
#include "millrace/checkpoint/restore.h"
#include "millrace/checkpoint/tensors.h"
#include "millrace/comm/fault.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/train/loop.h"
#include "mpi_world.h"
#include "own_log.h"
#include "train/run_folder.h"
#include "train/small_trainer.h"

namespace millrace {
namespace {

std::vector<RankOnHost> ranks_on_n1(int count) {
  std::vector<RankOnHost> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back({rank, "n1"});
  return ranks;
}

config::Auto<Duration> each(const Duration& duration) {
  return {duration};
}

constexpr int global_batch = 8, stripes = 4;

struct SmallNetImpl : torch::nn::Module {
  SmallNetImpl() { out = register_module("out", torch::nn::Linear(5, 3)); }
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(SmallNet);

struct Samples {
  torch::Tensor inputs, targets;
};

// The batch of this number.
Samples make_samples(int number, int count) {
  torch::manual_seed(1000 + number);
  return {torch::randn({count, 5}), torch::randn({count, 3})};
}

// Linear regression: the batch of a step follows from a number of its own, so that a step can be left out.
class Regression final : public test::IdleTask {
 public:
  struct Script {
    std::vector<int> batches;           // of step 1, 2, ...
    std::set<int> broken = {};          // steps in which the loss of the last sample is not a number
    std::set<int> broken_grads = {};    // steps in which its loss is 0 and its gradient is not a number
    std::set<int> spikes = {};          // steps in which the loss is a hundred times as high
    int damaged_at = 0;                 // rank 1's weights are, in this step
    int signal_at = 0;                  // a producer is stopped before this step
    int slow_rank = -1;                 // takes longer for the same
    int slow_reader = -1;               // a rank whose batches come 100 ms late
    int late_at = 0;                    // the batch of this step comes six seconds late
    int fails_at = 0;                   // the last rank finds no batch for this step
    Exit failure = Exit::suspect_node;  // which is why
    std::uint32_t epoch = 0;            // of all samples
    int per_stripe = global_batch / stripes;
  };
  Regression(SmallNet net, Script script, std::int64_t step)
      : net_(std::move(net)), script_(std::move(script)), step_(static_cast<int>(step)) {}

  bool next_batch(double) override {
    if (step_ + 1 == script_.fails_at && test_world().rank() == test_world().size() - 1)
      throw Error(script_.failure, "no batch");
    if (test_world().rank() == script_.slow_reader) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (step_ + 1 == script_.late_at) std::this_thread::sleep_for(std::chrono::seconds(6));
    ++step_;
    samples_ = make_samples(script_.batches.at(static_cast<std::size_t>(step_ - 1)), batch());
    const int own = stripes / test_world().size(), per_stripe = script_.per_stripe;
    refs_.clear();
    for (int stripe = own * test_world().rank(); stripe < own * (test_world().rank() + 1); ++stripe)
      for (int i = 0; i < per_stripe; ++i) {
        SampleRef ref;
        ref.id = fmt::format("stripe-{}/{}", stripe, per_stripe * (step_ - 1) + i);
        ref.stripe = static_cast<std::uint32_t>(stripe);
        ref.epoch = ref.after.epoch = script_.epoch;
        ref.after.row = static_cast<std::uint64_t>(per_stripe * (step_ - 1) + i + 1);
        refs_.push_back(ref);
      }
    return true;
  }
  const std::vector<SampleRef>& refs() const override { return refs_; }

  std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) override {
    const auto first = static_cast<std::int64_t>(refs_.size()) * test_world().rank();
    end_ = first + end;
    return {samples_.inputs.slice(0, first + begin, end_), samples_.targets.slice(0, first + begin, end_)};
  }
  torch::Tensor loss(const std::vector<torch::Tensor>& inputs) override {
    if (test_world().rank() == script_.slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto output = net_->out(inputs[0]);
    auto loss = (output - inputs[1]).square().sum() / batch();
    if (script_.spikes.contains(step_)) loss = 100 * loss;
    if (step_ == script_.damaged_at && test_world().rank() == 1) net_->out->bias.data()[0] += 1;
    if (end_ < batch()) return loss;
    if (script_.broken.contains(step_)) loss = loss * NAN;
    if (script_.broken_grads.contains(step_)) loss = loss + (0 * output.sum()).sqrt();
    return loss;
  }

  int producer_signal() override { return step_ == script_.signal_at ? SIGUSR1 : 0; }

 private:
  int batch() const { return stripes * script_.per_stripe; }

  SmallNet net_;
  Script script_;
  int step_;
  Samples samples_;
  std::int64_t end_ = 0;  // of the last inputs, in the global batch
  std::vector<SampleRef> refs_;
};

LoopConfig quick(const RunFolder& folder, Duration duration) {
  LoopConfig config;
  config.run_dir = folder.path().string();
  config.duration = duration;
  config.batch = {global_batch, 2};
  config.checkpoint.every = each(Duration::steps(100));
  config.checkpoint.keep = 100;
  config.log.every = Duration::steps(1);
  config.log.tensorboard = false;
  config.log.ids = true;
  config.guard.hang_timeout = each(Duration::seconds(20));
  return config;
}

using Shards = std::map<std::string, std::vector<torch::Tensor>>;

struct Outcome {
  LoopResult result;
  Shards state;  // of the optimizer
  std::int64_t updates = 0, ema_updates = 0;
};

// As many archives as stripes.
DataPlan make_data() {
  DataPlan data;
  data.stripes.stripes = stripes;
  for (std::uint32_t i = 0; i < stripes; ++i) {
    Archive archive;
    archive.name = std::to_string(i);
    archive.path = archive.name + ".tar";
    data.manifest.archives.push_back(archive);
    data.stripes.splits.push_back({i, 0, 1});
  }
  return data;
}

// What else a process of a run is started with.
struct Life {
  bool resume = false;                     // from its last checkpoint
  std::optional<std::string> chosen = {};  // from this one instead
  std::vector<UsedUpSteps> used_up = {};   // if there are some: else as the checkpoint says
  OptimConfig optim = {.lr = 1e-2, .warmup = Duration::steps(0)};
  ParallelConfig parallel = {};
  std::string gpu = {};
  double max_bad_share = 1;
  std::string ledger = {};                       // of those before it
  std::uint32_t epoch = 0;                       // in which they left all stripes
  std::function<nlohmann::json()> measure = {};  // called when a save begins
};

Outcome run(const LoopConfig& config, const Regression::Script& script, const Life& life = {}) {
  torch::manual_seed(1);
  SmallNet net;
  const auto& trainers = test_world().group();
  const auto data = make_data();
  ShardedModel model(*net, parameter_names(*net),
                     plan_shards(life.parallel, std::vector<std::string>(trainers.size(), "n1")), life.parallel,
                     trainers);
  ShardedAdamW optimizer(model, life.optim, EmaConfig{.decay = 0.5, .warmup = false});
  RunState start;
  if (life.resume || life.chosen) {
    const auto checkpoint =
        life.chosen ? CheckpointReader::open(*life.chosen) : *find_checkpoint(config.run_dir, trainers);
    restore(checkpoint, optimizer);
    start = checkpoint.state();
  }
  if (!life.used_up.empty()) start.used_up = life.used_up;
  start.ledger = life.ledger;
  for (std::uint32_t s = 0; life.epoch > 0 && s < stripes; ++s) start.cursors[s] = {.epoch = life.epoch};
  Regression task(net, script, start.step);
  Outcome outcome;
  outcome.result = run_loop({.task = task,
                             .model = model,
                             .optimizer = optimizer,
                             .trainers = trainers,
                             .config = config,
                             .optim = life.optim,
                             .data = data,
                             .max_bad_share = life.max_bad_share,
                             .device = torch::kCPU,
                             .manifest_extra = {{"kind", "unet"}},
                             .trainer_ranks = ranks_on_n1(trainers.size()),
                             .producer_ranks = ranks_on_n1(1),
                             .gpu_uuid = life.gpu,
                             .resumed_from = life.chosen,
                             .measure = life.measure},
                            start);
  for (const auto& [kind, shards] : optimizer.state())
    for (const auto& shard : shards) outcome.state[kind].push_back(shard.clone());
  outcome.updates = optimizer.updates();
  outcome.ema_updates = optimizer.ema_updates();
  return outcome;
}

void expect_equal(const Shards& a, const Shards& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [kind, shards] : a)
    for (std::size_t i = 0; i < shards.size(); ++i)
      EXPECT_TRUE(torch::equal(shards[i], b.at(kind)[i])) << kind << ", bucket " << i;
}

// ctest lets tests/nn/fake_nvml.cpp stand in for NVML.
TEST(Metrics, TellOfTheGpusWhatNvmlTells) {
  const char* const libraries = std::getenv("LD_LIBRARY_PATH");
  if (!libraries || std::string(libraries).find("fake_nvml") == std::string::npos) GTEST_SKIP() << "only by ctest";
  const RunFolder watched, unwatched;
  auto config = quick(watched, Duration::steps(2));
  config.log.prometheus = watched.path() / "run.prom";
  run(config, {{1, 2}}, {.gpu = "GPU-a"});
  run(quick(unwatched, Duration::steps(1)), {{1}}, {.gpu = "GPU-of-another-host"});
  if (test_world().rank() != 0) return;
  for (const auto& line : watched.lines("metrics.jsonl")) {
    EXPECT_EQ(line.at("gpu_utilization"), 0.75);
    EXPECT_EQ(line.at("gpu_memory_gib"), 20);
    EXPECT_NEAR(line.at("gpu_watts").get<double>(), 400, 40);
    EXPECT_EQ(line.at("gpu_clock_mhz"), 1305);
    EXPECT_EQ(line.at("gpu_temperature"), 84);
    EXPECT_FALSE(line.contains("encode_gpu_watts"));
  }
  EXPECT_NE(read_file(watched.path() / "run.prom").find("\nmillrace_gpu_utilization{run="), std::string::npos);
  for (const char* field : {"gpu_utilization", "gpu_clock_mhz", "gpu_temperature"})
    EXPECT_FALSE(unwatched.lines("metrics.jsonl").front().contains(field)) << field;
}

// The rate rises for two steps, and falls to 0 at the end of the fifth.
TEST(Update, IsThatOfPlainAdamWOnTheWholeBatch) {
  constexpr double clip = 0.1;
  const std::vector<int> batches = {1, 2, 3, 4, 5};
  const std::vector<double> rates = {0.005, 0.01, 0.02 / 3, 0.01 / 3, 0};
  const RunFolder folder;
  const OptimConfig optim{
      .lr = 1e-2, .clip = clip, .schedule = Schedule::linear, .warmup = {16, Duration::Unit::samples}};
  run(quick(folder, {40, Duration::Unit::samples}), {batches}, {.optim = optim});

  torch::manual_seed(1);
  SmallNet net;
  torch::optim::AdamW adamw(net->parameters(),
                            torch::optim::AdamWOptions().betas({0.9, 0.999}).eps(1e-8).weight_decay(0.01));
  std::vector<double> norms;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto [inputs, targets] = make_samples(batches[i], global_batch);
    adamw.zero_grad();
    ((net->out(inputs) - targets).square().sum() / global_batch).backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(net->parameters(), clip));
    adamw.param_groups()[0].options().set_lr(rates[i]);
    adamw.step();
    EXPECT_GT(norms.back(), clip) << "or nothing is clipped";
  }
  const auto checkpoint = CheckpointReader::open(folder.checkpoint(5));
  CheckpointTensors held(checkpoint);
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(torch::allclose(held.tensor("weights", item.key()), item.value(), /*rtol=*/0, /*atol=*/1e-6))
        << item.key();
  if (test_world().rank() != 0) return;
  const auto lines = folder.lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), batches.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_DOUBLE_EQ(lines[i]["lr"], rates[i]) << "step " << i + 1;
    EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norms[i], 1e-5 * norms[i]) << "step " << i + 1;
  }
}

TEST(Guard, ASkippedStepUsesItsBatchAndLeavesTheRestAsItWas) {
  const RunFolder skipping, straight;
  Regression::Script script{{1, 2, 3, 4, 5}};
  const auto reference = run(quick(straight, Duration::steps(3)), {{1, 2, 5}});
  script.broken = {3};
  script.broken_grads = {4};
  const auto outcome = run(quick(skipping, Duration::steps(5)), script);
  expect_equal(outcome.state, reference.state);
  EXPECT_EQ(outcome.updates, 3);
  EXPECT_EQ(outcome.ema_updates, 3);
  EXPECT_EQ(outcome.result.state.step, 5);
  EXPECT_EQ(outcome.result.state.samples, 5 * global_batch);
  EXPECT_EQ(outcome.result.state.skipped, 2);
  if (test_world().rank() != 0) return;

  const auto metrics = skipping.lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 5u);
  const std::vector<int> skipped = {0, 0, 1, 2, 2};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(metrics[i]["skipped"], skipped[i]) << "step " << i + 1;
    EXPECT_EQ(metrics[i]["loss"].is_null(), i == 2 || i == 3) << metrics[i];
    EXPECT_EQ(metrics[i]["grad_norm"].is_null(), i == 2 || i == 3) << metrics[i];
  }
  const auto ids = skipping.lines("ids.jsonl");
  ASSERT_EQ(ids.size(), 5u);
  EXPECT_EQ(ids[2]["ids"][0], "stripe-0/4");
}

// The 23rd of these steps ends the run: ids.jsonl knows nothing of it.
TEST(Guard, TheLogTellsAllSamplesOfEverySkippedStep) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(30));
  config.guard.max_skips = 22;
  Regression::Script script;
  for (int step = 1; step <= 30; ++step) {
    script.batches.push_back(step);
    script.broken.insert(step);
  }
  script.per_stripe = 4;
  config.batch.global = 16;
  const test::OwnLog log;
  EXPECT_THROW(run(config, script), Error);
  if (test_world().rank() != 0) return;
  const auto text = log.text();
  for (const int step : {1, 20, 21, 22, 23}) {
    const int first = 4 * (step - 1);
    EXPECT_NE(text.find(fmt::format("all samples of step {}: stripe-0/{}, stripe-0/{}, ", step, first, first + 1)),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(fmt::format("stripe-3/{}\n", first + 3)), std::string::npos) << text;
  }
  const auto ids = folder.lines("ids.jsonl");
  ASSERT_EQ(ids.size(), 22u);
  EXPECT_EQ(ids[21]["ids"].size(), 16u);
}

TEST(Straggler, MetricsNameTheTrainerThatTakesLongest) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(4));
  config.log.every = Duration::steps(4);
  run(config, {.batches = {1, 2, 3, 4}, .slow_rank = 1});
  if (test_world().rank() != 0) return;
  const auto line = folder.lines("metrics.jsonl").at(0);
  if (test_world().size() == 1) {
    EXPECT_EQ(line["straggler"], 1);
    EXPECT_EQ(line["slowest_rank"], 0);
  } else {
    EXPECT_GT(line["straggler"], 1.33) << line;
    EXPECT_EQ(line["slowest_rank"], 1) << line;
  }
}

// The others have their samples and wait for it all the same.
TEST(DataWait, IsThatOfTheTrainerWhoWaitsLongest) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(4));
  config.log.every = Duration::steps(4);
  const auto outcome = run(config, {.batches = {1, 2, 3, 4}, .slow_reader = test_world().size() - 1});
  EXPECT_GE(outcome.result.totals.data_wait_ms, 100);
  if (test_world().rank() != 0) return;
  const auto line = folder.lines("metrics.jsonl").at(0);
  EXPECT_GE(line["data_wait_ms"], 100) << line;
}

// A step takes 20 ms for each micro-batch of rank 0, and those that are passed over take none and train nothing.
TEST(Guard, StepsThatArePassedOverAreInNoRate) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(6));
  config.log.every = Duration::steps(3);
  const double shortest_ms = 20.0 * global_batch / test_world().size() / config.batch.micro;
  const auto outcome = run(config, {.batches = {1, 2, 3, 4, 5, 6}, .slow_rank = 0}, {.used_up = {{{2, 6}, 0}}});
  EXPECT_EQ(outcome.result.state.skipped, 5);
  EXPECT_GE(outcome.result.totals.step_ms, shortest_ms);
  if (test_world().rank() != 0) return;
  const auto lines = folder.lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_GE(lines[0]["step_ms"], shortest_ms) << lines[0];
  EXPECT_LE(lines[0]["images_per_second"], 1000 * global_batch / shortest_ms) << lines[0];
  for (const char* key : {"images_per_second", "step_ms", "data_wait_ms"}) EXPECT_EQ(lines[1][key], 0) << lines[1];
  EXPECT_EQ(lines[1]["samples"], 6 * global_batch) << "used, all the same";
}

TEST(Guard, ALineOfMetricsIsTheMeanOfItsFiniteSteps) {
  const RunFolder each, folder;
  run(quick(each, Duration::steps(2)), {{1, 2}});
  auto config = quick(folder, Duration::steps(3));
  config.log.every = Duration::steps(3);
  run(config, {{1, 7, 2}, {2}});
  if (test_world().rank() != 0) return;
  const auto single = each.lines("metrics.jsonl"), mean = folder.lines("metrics.jsonl");
  ASSERT_EQ(mean.size(), 1u);
  for (const char* key : {"loss", "grad_norm"})
    EXPECT_DOUBLE_EQ(mean[0][key], (single[0][key].get<double>() + single[1][key].get<double>()) / 2) << key;
}

Error numerics_error(const LoopConfig& config, const Regression::Script& script, const Life& life = {}) {
  try {
    run(config, script, life);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::numerics) << error.what();
    return error;
  }
  ADD_FAILURE() << "the run went on";
  return Error(Exit::done, "");
}

// The save of step 6 is under way then: it is from before, and is brought to its end.
TEST(Guard, MoreSkipsInARowThanAllowedEndTheRunWithoutACheckpoint) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(8));
  config.guard.max_skips = 2;
  config.checkpoint.every = each(Duration::steps(2));
  Regression::Script script{{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 5, 6, 7}};
  const std::string message = numerics_error(config, script).what();
  EXPECT_NE(message.find("step 7"), std::string::npos) << message;
  EXPECT_NE(message.find("stripe-0/12"), std::string::npos) << message;
  test_world().group().barrier();
  EXPECT_EQ(folder.checkpoints(), (Steps{2, 4, 6}));
}

// So it is where training goes back to it.
TEST(Guard, TheSaveBeforeABadStepIsThereToGoBackTo) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(8));
  config.guard.max_skips = 0;
  config.guard.on_repeat = GuardConfig::OnRepeat::rollback;
  config.checkpoint.every = each(Duration::steps(2));
  const auto result = run(config, {{1, 2, 3, 4, 5, 6, 7, 8}, {5}}).result;
  EXPECT_EQ(result.bad, (StepRange{5, 5}));
  EXPECT_EQ(result.checkpoint, folder.checkpoint(4).string());
  test_world().group().barrier();
  EXPECT_EQ(folder.checkpoints(), (Steps{2, 4}));
}

TEST(Guard, SkipsThatAreNotInARowDoNotAddUp) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(8));
  config.guard.max_skips = 2;
  const auto outcome = run(config, {{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 5, 6, 8}});
  EXPECT_EQ(outcome.result.state.skipped, 5);
  EXPECT_TRUE(outcome.result.finished);
}

TEST(Guard, StopEndsTheRunAtTheFirst) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(4));
  config.guard.non_finite = GuardConfig::NonFinite::stop;
  const std::string message = numerics_error(config, {{1, 2, 3, 4}, {2}}).what();
  EXPECT_NE(message.find("step 2"), std::string::npos) << message;
  test_world().group().barrier();
  EXPECT_TRUE(folder.checkpoints().empty());
}

// Loss and gradient of step 1 are finite, its update is not: the guard cannot see that, the first checkpoint does.
TEST(Guard, WeightsThatHaveOverflownAreNotSaved) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(6));
  config.checkpoint.every = each(Duration::steps(2));
  const Life life{.optim = {.lr = 1e39, .warmup = Duration::steps(0)}};
  const std::string message = numerics_error(config, {{1, 2, 3, 4, 5, 6}}, life).what();
  EXPECT_NE(message.find("step 2"), std::string::npos) << message;
  EXPECT_NE(message.find("out."), std::string::npos) << message;
  test_world().group().barrier();
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "checkpoints"));
}

std::vector<int> count_up(int steps, const std::set<int>& without = {}) {
  std::vector<int> batches;
  for (int step = 1; step <= steps; ++step)
    if (!without.contains(step)) batches.push_back(step);
  return batches;
}

// It is judged by what was learnt before the restart.
TEST(Guard, ASpikeIsSkippedAlsoAfterARestart) {
  const RunFolder straight, folder;
  Regression::Script without{count_up(130, {111, 120})}, script{count_up(130)};
  without.spikes = {50};  // before anything is judged
  script.spikes = {50, 111, 120};
  const auto reference = run(quick(straight, Duration::steps(128)), without);
  run(quick(folder, Duration::steps(110)), script);
  const auto outcome = run(quick(folder, Duration::steps(130)), script, {.resume = true});
  expect_equal(outcome.state, reference.state);
  EXPECT_EQ(reference.result.state.skipped, 0);
  EXPECT_EQ(outcome.result.state.skipped, 2);
  EXPECT_EQ(outcome.result.state.losses.steps, 128);
  EXPECT_EQ(outcome.result.state.losses.mean, reference.result.state.losses.mean);
  if (test_world().rank() != 0) return;
  const auto metrics = folder.lines("metrics.jsonl");
  EXPECT_GT(metrics.at(110)["loss"].get<double>(), 10 * metrics.at(109)["loss"].get<double>()) << "logged as it was";
}

TEST(Guard, LossesOfOtherSettingsAreNoMeasure) {
  for (const std::string now : {"these settings", "others"}) {
    const RunFolder folder;
    Regression::Script script{count_up(122)};
    script.spikes = {121};
    auto config = quick(folder, Duration::steps(120));
    config.losses_of = "these settings";
    run(config, script);
    config.duration = Duration::steps(122);
    config.losses_of = now;
    const auto state = run(config, script, {.resume = true}).result.state;
    EXPECT_EQ(state.skipped, now == "others" ? 0 : 1);
    EXPECT_EQ(state.losses.steps, now == "others" ? 2 : 121);
  }
}

// A run that skips every step is to end, whatever was changed between its lives.
TEST(Guard, StepsThatWereSkippedCountUnderOtherSettings) {
  const RunFolder folder;
  Regression::Script script{count_up(130)};
  script.spikes = {120, 121};
  auto config = quick(folder, Duration::steps(121));
  config.losses_of = "these settings";
  const auto before = run(config, script).result.state;
  ASSERT_EQ(before.losses.skips_in_a_row, 2);
  config.duration = Duration::steps(122);
  config.losses_of = "others";
  script.spikes = {};
  script.broken = {122};
  const auto after = run(config, script, {.resume = true}).result.state;
  EXPECT_EQ(after.losses.skips_in_a_row, 3);
  EXPECT_EQ(after.losses.first_skip, 120);
}

TEST(Guard, TooManySpikesInARowEndTheRun) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(130));
  config.guard.max_skips = 2;
  Regression::Script script{count_up(130)};
  script.spikes = {105, 106, 108, 109, 110};
  const std::string message = numerics_error(config, script).what();
  EXPECT_NE(message.find("step 110: loss"), std::string::npos) << message;
  EXPECT_NE(message.find("standard deviations above its mean"), std::string::npos) << message;
  EXPECT_NE(message.find("(3 in a row)"), std::string::npos) << message;
}

std::string error_of_damage(int step, Strategy strategy) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(9));
  config.guard.digest_every = Duration::steps(2);
  Regression::Script script{count_up(9)};
  script.damaged_at = step;
  try {
    run(config, script, {.parallel = {.strategy = strategy}});
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::suspect_node);
    return error.what();
  }
  return "";
}

TEST(Guard, WeightsThatDifferEndTheRun) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  const std::string message =
      test_world().size() == 2
          ? "step 6: the trainers' weights differ, and no majority agrees: rank 0 on n1, rank 1 on n1"
          : "step 6: weights differ from those of the other trainers: rank 1 on n1";
  EXPECT_EQ(error_of_damage(5, Strategy::ddp), message);
  // Here they are gathered anew in every step, so they are compared as the step that is due has used them.
  EXPECT_EQ(error_of_damage(6, Strategy::shard_grad_op), message);
}

// Restoring would make the replicas equal again, so that nobody could ever tell.
TEST(Guard, NoCheckpointIsMadeOfWeightsThatDiffer) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(9));
  config.checkpoint.every = each(Duration::steps(2));
  Regression::Script script{count_up(9)};
  script.damaged_at = 5;
  try {
    run(config, script, {.parallel = {.strategy = Strategy::ddp}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::suspect_node);
    EXPECT_NE(std::string(error.what()).find("step 6: "), std::string::npos) << error.what();
  }
  EXPECT_EQ(folder.checkpoints(), (Steps{2, 4}));
}

TEST(Guard, SkippedStepsAreCountedOverRestarts) {
  const RunFolder folder;
  const Regression::Script script{{1, 2, 3, 4, 5}, {2, 5}};
  run(quick(folder, Duration::steps(3)), script);
  const auto resumed = run(quick(folder, Duration::steps(5)), script, {.resume = true});
  EXPECT_EQ(resumed.result.state.skipped, 2);
  EXPECT_EQ(resumed.result.state.updates, 3);
  if (test_world().rank() != 0) return;
  EXPECT_EQ(folder.lines("metrics.jsonl").back()["skipped"], 2);
}

TEST(Saves, AreDueAtMultiplesOfSteps) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(10));
  config.checkpoint.every = each(Duration::steps(4));
  run(config, {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}});
  EXPECT_EQ(folder.checkpoints(), (Steps{4, 8, 10}));
}

TEST(Saves, AreLoggedWithWhatTheyTook) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(4));
  config.checkpoint.every = each(Duration::steps(2));
  const test::OwnLog log;
  run(config, {{1, 2, 3, 4}});
  const auto text = log.text();
  for (const int step : {2, 4}) {
    const std::regex line(fmt::format(R"( checkpoint {} \(training stood \d+\.\d s, written in \d+\.\d s\)\n)",
                                      folder.checkpoint(step).string()));
    EXPECT_EQ(std::regex_search(text, line), test_world().rank() == 0) << text;
  }
}

TEST(Saves, AreDueWhenAMultipleOfSamplesIsPassed) {
  const RunFolder folder;
  auto config = quick(folder, {75, Duration::Unit::samples});
  config.checkpoint.every = each({20, Duration::Unit::samples});  // 20, 40, 60 lie in or at the end of steps 3, 5, 8
  const auto outcome = run(config, {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}});
  EXPECT_EQ(folder.checkpoints(), (Steps{3, 5, 8, 10}));
  EXPECT_EQ(outcome.result.state.samples, 80);
  EXPECT_TRUE(outcome.result.finished);
}

TEST(Saves, ASignalSavesWhereItIsAndTheNextOnesAreDueAsBefore) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(10));
  config.checkpoint.every = each(Duration::steps(4));
  Regression::Script script{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
  script.signal_at = 4;
  const auto stopped = run(config, script);
  EXPECT_FALSE(stopped.result.finished);
  EXPECT_NE(stopped.result.reason.find("User defined signal 1"), std::string::npos) << stopped.result.reason;
  EXPECT_EQ(folder.checkpoints(), Steps{3});
  script.signal_at = 0;
  const auto resumed = run(config, script, {.resume = true});
  EXPECT_TRUE(resumed.result.finished);
  EXPECT_EQ(folder.checkpoints(), (Steps{3, 4, 8, 10}));

  const RunFolder other;
  expect_equal(resumed.state, run(quick(other, Duration::steps(10)), {script.batches}).state);
}

// Waiting for samples while a checkpoint is written is no part of what the next one takes.
TEST(Saves, LeaveBeforeTheTimeIsUpByWhatTheyTakeThemselves) {
  if (test_world().size() != 2) GTEST_SKIP() << "seconds asleep: tried on two ranks";
  std::string reason = "-";
  for (int time = 0; time < 3 && !reason.empty(); ++time) {  // the machine itself may take the rest of the time once
    const RunFolder folder;
    auto config = quick(folder, Duration::steps(4));
    config.checkpoint.every = each(Duration::steps(1));
    ::setenv("MILLRACE_END_TIME", fmt::format("{:.0f}", unix_seconds() + 47).c_str(), /*overwrite=*/1);
    const auto result = run(config, {.batches = {1, 2, 3, 4}, .late_at = 2}).result;
    ::unsetenv("MILLRACE_END_TIME");
    reason = result.finished ? "" : result.reason + " was what ended it";
  }
  EXPECT_EQ(reason, "");
}

// Checkpoints of the time that is left then are none of the time that goes on, though their steps are smaller.
TEST(Saves, GoingBackToOneThatWasPutAsidePutsTheOthersAside) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(6));
  config.checkpoint.every = each(Duration::steps(2));
  const Regression::Script script{{1, 2, 3, 4, 5, 6, 7, 8}};
  run(config, script);
  const auto aside = folder.path() / "checkpoints" / "step-00000006.abandoned-once";
  if (test_world().rank() == 0) std::filesystem::rename(folder.path() / "checkpoints" / step_name(6), aside);
  test_world().group().barrier();
  config.duration = Duration::steps(8);
  run(config, script, {.chosen = aside.string()});
  EXPECT_EQ(folder.checkpoints(), Steps{8});
}

TEST(Saves, GoingOnFromItsOwnLeavesTheOlderOnes) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(4));
  config.checkpoint.every = each(Duration::steps(2));
  const Regression::Script script{{1, 2, 3, 4, 5, 6}};
  run(config, script);
  config.duration = Duration::steps(6);
  run(config, script, {.chosen = (folder.path() / "checkpoints" / step_name(4)).string() + "/"});
  EXPECT_EQ(folder.checkpoints(), (Steps{2, 4, 6}));
}

// Every second step is saved and two are kept, with the restart after step 5 in between.
Steps kept(const Duration& keep_every) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(11));
  config.checkpoint.every = each(Duration::steps(2));
  config.checkpoint.keep = 2;
  config.checkpoint.keep_every = keep_every;
  Regression::Script script{{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  script.signal_at = 6;
  run(config, script);
  script.signal_at = 0;
  run(config, script, {.resume = true});
  test_world().group().barrier();  // rank 0 has deleted what is old
  return folder.checkpoints();
}

TEST(Saves, TheFirstAtOrAfterEachMultipleOfKeepEveryStays) {
  EXPECT_EQ(kept(Duration::steps(4)), (Steps{4, 8, 10, 11}));
  EXPECT_EQ(kept(Duration::steps(3)), (Steps{4, 6, 10, 11}));
  EXPECT_EQ(kept({30, Duration::Unit::samples}), (Steps{4, 8, 10, 11}));  // 32 and 64 samples
  EXPECT_EQ(kept(Duration::steps(1000)), (Steps{10, 11}));
  EXPECT_EQ(kept(Duration::seconds(1e-9)), (Steps{2, 4, 5, 6, 8, 10, 11}));
  EXPECT_EQ(kept(Duration::seconds(3600)), (Steps{10, 11}));
}

// Steps that take 0.4 s together: 20 ms for each micro-batch of rank 0.
int slow_steps() {
  return 5 * test_world().size();
}

TEST(Saves, TheLastOneIsTriedAgainAndItsFailureIsOfTheDisk) {
  const RunFolder folder;
  const int steps = slow_steps();
  if (test_world().rank() == 0) std::ofstream(folder.path() / "checkpoints") << "in the way";
  test_world().group().barrier();
  auto config = quick(folder, Duration::steps(steps));
  config.checkpoint.every = each(Duration::steps(2));
  try {
    run(config, {.batches = std::vector<int>(static_cast<std::size_t>(steps), 1), .slow_rank = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io) << error.what();
    const auto said = fmt::format("the last checkpoint, of step {},", steps);
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
  test_world().group().barrier();
  const auto lines = folder.lines("metrics.jsonl");
  ASSERT_EQ(std::ssize(lines), steps);
  EXPECT_EQ(lines.back()["checkpoint_step"], 0);
  const auto age = [](const nlohmann::json& line) { return line["checkpoint_age_s"].get<double>(); };
  EXPECT_GT(age(lines.back()), age(lines.front()) + 0.15);
}

// The second rank's node sees something else in the first rank's file of the first attempt.
TEST(Saves, TheLastOneIsMadeAgainWhereItIsReadBackDamaged) {
  if (test_world().size() == 1) GTEST_SKIP() << "needs another rank";
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(2));
  std::optional<StaleSight> sight;
  if (test_world().rank() == 1) config.run_dir = sight.emplace(folder, 2).path().string();
  int saves = 0;
  const auto begin_save = [&] {
    ++saves;
    if (sight && saves == 1) sight->spoil();
    if (sight && saves == 2) sight->repair();
    return nlohmann::json::object();
  };
  EXPECT_TRUE(run(config, {{1, 2}}, {.measure = begin_save}).result.is_saved);
  EXPECT_EQ(saves, 2);
  EXPECT_EQ(folder.checkpoints(), Steps{2});
  EXPECT_NO_THROW(CheckpointReader::open(folder.checkpoint(2)));
}

TEST(Saves, LinesTellWhereTheNewestStands) {
  const RunFolder folder;
  const int steps = slow_steps();
  auto config = quick(folder, Duration::steps(steps));
  config.checkpoint.every = each(Duration::steps(1));
  const Regression::Script script{.batches = std::vector<int>(static_cast<std::size_t>(steps + 2), 1), .slow_rank = 0};
  run(config, script);
  config.duration = Duration::steps(steps + 1);
  config.checkpoint.every = each(Duration::steps(100));
  run(config, script, {.resume = true});
  test_world().group().barrier();
  const auto lines = folder.lines("metrics.jsonl");
  ASSERT_EQ(std::ssize(lines), steps + 1);
  EXPECT_EQ(lines.front()["checkpoint_step"], 0);
  EXPECT_EQ(lines.back()["checkpoint_step"], steps) << "of the life before";
  // Of every step there is a checkpoint, which holds the seconds in training.
  const auto seconds_at = [&](std::int64_t step) {
    return step == 0 ? 0 : CheckpointReader::open(folder.checkpoint(step)).state().seconds;
  };
  EXPECT_GT(seconds_at(steps), 0.35);
  for (const auto& line : lines)
    EXPECT_NEAR(line["checkpoint_age_s"].get<double>(), seconds_at(line["step"]) - seconds_at(line["checkpoint_step"]),
                0.06)  // a tenth is told
        << line;
  test_world().group().barrier();
  config.duration = Duration::steps(steps + 2);
  config.checkpoint.every.reset();
  run(config, script, {.resume = true});
  test_world().group().barrier();
  EXPECT_FALSE(folder.lines("metrics.jsonl").back().contains("checkpoint_step"));
}

TEST(Saves, ALedgerThatCannotBeWrittenIsNoReasonToStop) {
  const RunFolder folder;
  if (test_world().rank() == 0) std::filesystem::create_directories(folder.path() / "ledger.json" / "in the way");
  test_world().group().barrier();
  auto config = quick(folder, Duration::steps(4));
  config.checkpoint.every = each(Duration::steps(2));
  EXPECT_TRUE(run(config, {{1, 2, 3, 4}}).result.finished);
  EXPECT_EQ(folder.checkpoints(), (Steps{2, 4}));
}

TEST(Saves, EachHoldsTheNewestPlaceOfEveryStripe) {
  const RunFolder folder;
  auto config = quick(folder, Duration::steps(6));
  config.checkpoint.every = each(Duration::steps(2));
  run(config, {{1, 2, 3, 4, 5, 6}});
  for (const std::int64_t step : {2, 4, 6}) {
    const auto state = CheckpointReader::open(folder.path() / "checkpoints" / step_name(step)).state();
    ASSERT_EQ(state.cursors.size(), static_cast<std::size_t>(stripes));
    for (const auto& [stripe, cursor] : state.cursors)
      EXPECT_EQ(cursor.row, static_cast<std::uint64_t>(step * global_batch / stripes))
          << "step " << step << ", stripe " << stripe;
  }
}

// Rows that are too few to be judged within a pass.
TEST(BadRows, ARestartIsNotTheEndOfThePassesBeforeIt) {
  const auto data = make_data();
  Ledger ledger(data);
  LedgerDelta delta;
  for (int row = 0; row < 60; ++row)
    delta.add(0, row, row % 2 ? std::optional(RejectReason::decode_error) : std::nullopt);
  ledger.merge(delta);
  const RunFolder folder;
  const auto outcome = run(quick(folder, Duration::steps(2)), {.batches = {1, 2}, .epoch = 2},
                           {.max_bad_share = 0.2, .ledger = ledger.state_json(), .epoch = 2});
  EXPECT_EQ(outcome.result.state.step, 2);
  test_world().group().barrier();
  const auto lines = folder.lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["rows"], 60);
  EXPECT_EQ(lines[0]["rejected"].dump(), R"({"decode_error":30})");
}

// Rank 0 alone has one: the others would train without it, or wait for it.
TEST(Progress, ThatCannotBeginEndsTheStartOfAllRanks) {
  const RunFolder folder;
  if (test_world().rank() == 0) std::filesystem::create_symlink("elsewhere", folder.path() / "metrics.jsonl");
  test_world().group().barrier();
  const auto error = test::error_of([&] { run(quick(folder, Duration::steps(1)), {{1}}); });
  test_world().group().barrier();
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("metrics.jsonl is a symbolic link to elsewhere"), std::string::npos)
      << error.what();
}

// The last test: from here on this process has a file of faults, of which it writes one, and whatever throws out of a
// run ends it in a minute.
TEST(Fault, WhoHasOnlyWaitedInVainIsNotNamed) {
  const RunFolder folder;
  const auto& world = test_world();
  fault::report_to({folder.path(), world.rank(), world.host(), "trainer"});
  const auto config = quick(folder, Duration::steps(9));
  Regression::Script script{.batches = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .fails_at = 4};
  const auto waited = run(config, script);
  ASSERT_TRUE(waited.result.failure);
  EXPECT_EQ(waited.result.failure->exit(), Exit::suspect_node);
  EXPECT_EQ(waited.result.checkpoint, folder.checkpoint(3).string()) << "what was reached is saved";
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "fault")) << "MPI may have failed because another rank is gone";

  script.fails_at = 6;
  script.failure = Exit::io;
  run(config, script, {.resume = true});
  test_world().group().barrier();
  EXPECT_TRUE(std::filesystem::exists(folder.path() / fmt::format("fault/rank-{:05d}.json", world.size() - 1)));
}

}  // namespace
}  // namespace millrace
