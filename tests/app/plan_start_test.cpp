#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>

#include "core/temp_dir.h"
#include "error_of.h"
#include "export/export.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"
#include "millrace/models/presets.h"
#include "millrace/train/balance.h"
#include "plan/bench_rates.h"
#include "plan/run_forecast.h"
#include "plan/start_command.h"
#include "run/disk_space.h"
#include "run/resume.h"
#include "test_data.h"
#include "train/complaints.h"
#include "train/networks.h"
#include "train/routing.h"
#include "train/start_table.h"
#include "train/train_plan.h"

// What a plan says, without running the command: tests/e2e/plan_test.cpp does that.
namespace millrace {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

std::vector<std::string> start(const std::string& cluster, const TrainConfig& config, const config::Inputs& inputs,
                               const GpuModel* trainer = nullptr) {
  RunForecast forecast;
  forecast.chosen_trainer = trainer;
  return start_command(forecast, parse_cluster(cluster), config, inputs);
}

TrainConfig open_config() {
  TrainConfig config;
  config.run.dir = {unset_run_dir, true};
  config.model.pipeline = {unset_pipeline, true};
  config.data.train.path = {unset_archives};
  return config;
}

// In a run of 2000 steps the default of 10000 never gets beyond a fifth of the rate.
TEST(StartTable, ComplainsOfALongWarmup) {
  const OptimConfig usual;
  const auto complaint = complaint_about_warmup(usual, Duration::steps(2000), 64);
  ASSERT_TRUE(complaint);
  EXPECT_THAT(*complaint, testing::HasSubstr("20% of optim.lr"));
  EXPECT_THAT(complaint_about_warmup({.warmup = {5, Duration::Unit::samples}}, Duration::steps(2), 2).value(),
              testing::HasSubstr("80% of optim.lr"));
  EXPECT_TRUE(complaint_about_warmup(usual, {64 * 9999.0, Duration::Unit::samples}, 64));
  EXPECT_EQ(complaint_about_warmup(usual, Duration::steps(15000), 64), "optim.warmup is 10000 steps, 67% of the run");
  EXPECT_EQ(complaint_about_warmup(usual, {64 * 10000.0, Duration::Unit::samples}, 64),
            "optim.warmup is 10000 steps, 100% of the run");
  EXPECT_FALSE(complaint_about_warmup(usual, Duration::steps(40000), 64)) << "a quarter";
  EXPECT_TRUE(complaint_about_warmup(usual, Duration::steps(39999), 64));
  EXPECT_FALSE(complaint_about_warmup(usual, Duration::steps(15000), 64, {.step = 10000})) << "it is over";
  EXPECT_FALSE(complaint_about_warmup({.warmup = Duration::steps(0)}, Duration::steps(1), 64));
  EXPECT_FALSE(complaint_about_warmup(usual, Duration::seconds(1), 64)) << "nobody knows";
}

// 0.9999^550000 is nothing, 0.9999^10000 = 0.368.
TEST(StartTable, ComplainsOfRandomWeightsThatTheEmaKeeps) {
  TrainConfig config;
  config.ema.warmup = false;
  EXPECT_FALSE(complaint_about_ema(config));
  config.duration = Duration::steps(10000);
  EXPECT_EQ(complaint_about_ema(config),
            "ema.warmup=false: at the end of the run 37% of the EMA are still the random initial weights");
  config.duration = {10000.0 * config.batch.global, Duration::Unit::samples};
  EXPECT_TRUE(complaint_about_ema(config));
  config.duration = Duration::steps(46040);  // 0.010009
  EXPECT_TRUE(complaint_about_ema(config));
  config.duration = Duration::steps(46060);  // 0.009989
  EXPECT_FALSE(complaint_about_ema(config));
  config.duration = Duration::steps(10000);
  for (const auto change :
       {+[](TrainConfig& c) { c.ema.warmup = true; }, +[](TrainConfig& c) { c.ema.enabled = false; },
        +[](TrainConfig& c) { c.model.unet.init = ModelConfig::Init::pretrained; },
        +[](TrainConfig& c) { c.model.unet.ema_start = "folder"; },
        +[](TrainConfig& c) { c.duration = Duration::seconds(1); }}) {
    auto changed = config;
    change(changed);
    EXPECT_FALSE(complaint_about_ema(changed));
  }
}

// 1 - 0.9 x 0.9 = 19 %.
TEST(StartTable, ComplainsOfCaptionsThatAreDroppedTwice) {
  EncodingPlan tables, cache, images;
  tables.encodes = cache.encodes = false;
  cache.cache = "cache";
  EXPECT_EQ(complaint_about_captions(tables, {}),
            "if captions were dropped when the Parquet latents were made, objective.caption_dropout=0.1 drops more of "
            "them: where a tenth was, 19% are empty; 0 drops none");
  EXPECT_FALSE(complaint_about_captions(tables, {.caption_dropout = 0}));
  EXPECT_FALSE(complaint_about_captions(cache, {})) << "which holds every caption";
  EXPECT_FALSE(complaint_about_captions(images, {}));
}

TEST(StartTable, SaysHowIsTrained) {
  EXPECT_EQ(describe(OptimConfig{}), "AdamW lr 0.0001 wd 0.01, warm-up 10000 steps, clip 1");
  EXPECT_EQ(describe(OptimConfig{.clip = {}, .warmup = Duration::steps(0)}), "AdamW lr 0.0001 wd 0.01");
  EXPECT_EQ(describe(OptimConfig{.clip = 0.5, .schedule = Schedule::cosine, .warmup = {16, Duration::Unit::samples}}),
            "AdamW lr 0.0001 wd 0.01, warm-up 16 samples, cosine, clip 0.5");
  EXPECT_EQ(describe(EmaConfig{}), "0.9999 with warm-up");
  EXPECT_EQ(describe(EmaConfig{.decay = 0.99, .warmup = false}), "0.99");
  EXPECT_EQ(describe(EmaConfig{.enabled = false}), "off");
  EXPECT_EQ(describe(ObjectiveConfig{}), "epsilon, caption drop 0.1");
  EXPECT_EQ(describe(ObjectiveConfig{.prediction = Prediction::v_prediction,
                                     .timesteps = ObjectiveConfig::Timesteps::stratified,
                                     .snr_gamma = 5,
                                     .noise_offset = 0.1,
                                     .zero_terminal_snr = true,
                                     .input_perturbation = 0.2}),
            "v_prediction, stratified timesteps, zero terminal SNR, min-SNR 5, noise offset 0.1, input perturbation "
            "0.2, caption drop 0.1");
}

// A cosine that was to end at step 10000, now half way to 20000: 1e-4 (1 + cos(pi / 2)) / 2.
TEST(Resume, ComplainsOfALearningRateThatJumps) {
  TrainConfig before;
  before.optim.schedule = Schedule::cosine;
  before.optim.warmup = Duration::steps(0);
  before.duration = Duration::steps(10000);
  auto now = before;
  const RunPoint end = {.step = 10000, .samples = std::int64_t{10000} * before.batch.global};
  EXPECT_FALSE(complaint_about_rate(before, now, end)) << "0 both times";
  now.duration = Duration::steps(20000);
  EXPECT_EQ(complaint_about_rate(before, now, end),
            "the learning rate of step 10001 is 5e-05; by the settings of the checkpoint it would be 0");
  EXPECT_FALSE(complaint_about_rate(now, before, end)) << "nothing is trained";
  before.duration = Duration::steps(10001);
  EXPECT_EQ(complaint_about_rate(now, before, end),
            "the learning rate of step 10001 is 0; by the settings of the checkpoint it would be 5e-05");

  TrainConfig slower, faster;
  faster.optim.lr = 1.09e-4;
  EXPECT_FALSE(complaint_about_rate(slower, faster, end)) << "less than a tenth";
  faster.optim.lr = 1.11e-4;
  EXPECT_TRUE(complaint_about_rate(slower, faster, end));
  // The decay at the end of a constant run: linear from where it is.
  auto falling = slower;
  falling.optim.schedule = Schedule::linear;
  falling.optim.warmup = Duration::steps(10000);
  falling.duration = Duration::steps(12000);
  EXPECT_FALSE(complaint_about_rate(slower, falling, end));
}

// Of a run with run.seed=420.
TEST(Resume, KeepsTheCursorsIntoTheDataThatStillHold) {
  const auto golden = CheckpointReader::open(test::data_dir() / "checkpoints/format-2");
  const auto before = RunIdentity::from_manifest(golden.manifest());
  const auto kept = [&](const std::string& data, const std::string& settings) {
    nlohmann::json identity = {{"kind", "unet"}, {"config", settings}, {"data", before.data}};
    if (!data.empty()) identity["data"] = data;
    return kept_cursors(before, RunIdentity::from_manifest(identity));
  };
  const std::string same = "run: {seed: 420}\n";
  EXPECT_EQ(kept("", same + "optim: {lr: 1}\ndata: {train: {path: a.tar}}\n"), KeptCursors::all);
  for (const char* change :
       {"{shuffle_block: 7}", R"({train: {filters: {width: ">=512"}}})", "{train: {columns: {image: picture}}}"})
    EXPECT_EQ(kept("", same + "data: " + change + "\n"), KeptCursors::rows) << change;
  EXPECT_EQ(kept("", "run: {seed: 421}\ndata: {shuffle_block: 7}\n"), KeptCursors::epoch);
  EXPECT_EQ(kept("others", same), KeptCursors::none);
}

// What diffusers' EMAModel.save_pretrained writes beside the weights.
TEST(Resume, AnEmaTellsHowManyUpdatesItHasHad) {
  const test::TempDir folder;
  EXPECT_EQ(find_ema_updates(folder.path()), std::nullopt);
  const auto of = [&](const std::string& text) {
    const auto file = folder.write("config.json", text);
    return find_ema_updates(file.parent_path());
  };
  EXPECT_EQ(of(R"({"_class_name": "UNet2DConditionModel"})"), std::nullopt);
  EXPECT_EQ(of(R"({"decay": 0.9999, "optimization_step": 15000, "update_after_step": 0})"), 15000);
  EXPECT_EQ(of(R"({"optimization_step": 0})"), 0);
  for (const char* wrong : {"-1", "1.5", "\"15000\"", "null", "true", "18446744073709551615"}) {
    const auto error = test::error_of([&] { of(fmt::format(R"({{"optimization_step": {}}})", wrong)); });
    EXPECT_EQ(error.exit(), Exit::io) << wrong;
    EXPECT_THAT(error.what(), testing::HasSubstr((folder.path() / "config.json").string())) << wrong;
  }
}

// What a run exports is no average of diffusers' EMAModel, even where its first weights were one.
TEST(Export, LeavesOutTheCountersOfAnEma) {
  const test::TempDir folder;
  const auto pipeline = test::data_dir() / "folder/pipeline";
  const auto golden = CheckpointReader::open(test::data_dir() / "checkpoints/format-2");
  auto unet = read_json(pipeline / "unet/config.json");
  auto manifest = golden.manifest();
  manifest["config"] = "run: {dir: r}\nmodel: {pipeline: p}\ndata: {train: {path: a.tar}}\n";
  manifest["pipeline"] = pipeline.string();
  manifest["model"] = unet;
  manifest["model"].update({{"decay", 0.9999},
                            {"inv_gamma", 1.0},
                            {"min_decay", 0.0},
                            {"optimization_step", 15000},
                            {"power", 0.75},
                            {"update_after_step", 0},
                            {"use_ema_warmup", false}});
  fs::copy(golden.path(), folder / "checkpoint");
  CheckpointManifest::write(folder / "checkpoint", manifest, golden.files(), golden.tensors());
  export_checkpoint({.checkpoint = CheckpointReader::open(folder / "checkpoint"), .out = folder / "out"});
  unet["sample_size"] = 128;  // of 256 pixels, and the VAE's factor is 2
  EXPECT_EQ(read_json(folder / "out/unet/config.json"), unet);
}

// 512 stripes on 448 producers: 64 have two, and every step takes as much of each stripe.
TEST(StartTable, ComplainsOfProducersThatAddNothing) {
  const auto complaint = [](int producers, int stripes, int global_batch) {
    Roles roles;
    roles.trainers = {0};
    for (int rank = 1; rank <= producers; ++rank) roles.producers.push_back(rank);
    return complaint_about_producers(roles, stripes, global_batch).value_or("");
  };
  EXPECT_EQ(complaint(448, 512, 2048),
            "64 of the 448 producers own 2 stripes each and set the pace: 256 producers would do as much; in a new run "
            "a larger data.stripes, a divisor of batch.global, may deal them out more evenly");
  EXPECT_THAT(complaint(448, 512, 512), testing::EndsWith("256 producers would do as much")) << "no larger divisor";
  EXPECT_EQ(complaint(48, 512, 2048), "") << "3 % are none";
  EXPECT_EQ(complaint(512, 512, 2048), "");
  EXPECT_FALSE(complaint_about_producers(all_in_one_roles(3), 4, 8)) << "trainers set the pace there";
}

TEST(StartTable, ComplainsOfTrainersThatWaitForOthers) {
  const auto complaint = [](int trainers, int stripes) {
    return complaint_about_shares(plan_routing(all_in_one_roles(trainers), stripes)).value_or("");
  };
  EXPECT_EQ(complaint(3, 4),
            "a step takes 50% longer than it would if the 3 trainers had equal shares of the 4 stripes");
  EXPECT_EQ(complaint(4, 5),
            "a step takes 60% longer than it would if the 4 trainers had equal shares of the 5 stripes");
  EXPECT_EQ(complaint(3, 512), "");
  EXPECT_EQ(complaint(4, 4), "");
}

// Of an SD 2 run for a month with one a thousand steps: nobody looks at the disk again.
TEST(DiskSpace, CountsWhatIsKeptForGood) {
  const auto for_good = [](const std::optional<Duration>& keep_every, std::optional<config::Auto<Duration>> every,
                           const Duration& duration, const RunPoint& start) {
    CheckpointConfig config;
    config.keep_every = keep_every;
    config.every = std::move(every);
    return plan_checkpoints(1, config, duration, 2048, start).for_good;
  };
  const config::Auto<Duration> often{Duration::steps(2000)};
  const auto long_run = Duration::steps(550000);
  EXPECT_EQ(for_good(std::nullopt, often, long_run, {}), 0u);
  EXPECT_EQ(for_good(Duration::steps(20000), often, long_run, {}), 27u);
  EXPECT_EQ(for_good(Duration::steps(20000), often, long_run, {.step = 39999}), 26u) << "one is there";
  EXPECT_EQ(for_good(Duration::steps(20000), often, Duration::steps(10), {.step = 39999}), 0u) << "it is over";
  EXPECT_EQ(for_good(Duration::steps(1), often, long_run, {}), 275u) << "no more than are saved";
  EXPECT_EQ(for_good(Duration::steps(1), config::Auto<Duration>{}, Duration::steps(100), {}), 100u);
  EXPECT_EQ(for_good(Duration::steps(1), std::nullopt, long_run, {}), 0u) << "none are saved";
  EXPECT_EQ(for_good(Duration{2048 * 1e4, Duration::Unit::samples}, often, long_run, {}), 55u);
  EXPECT_EQ(for_good(Duration::seconds(3600), often, Duration::seconds(86400), {.seconds = 7200}), 22u);
  EXPECT_EQ(for_good(Duration::seconds(3600), often, long_run, {}), 0u) << "nobody knows";
}

TEST(DiskSpace, WarnsOfWhatWillNotFit) {
  const test::TempDir run;
  const auto free = fs::space(run.path()).available;
  const auto said = [&](std::uint64_t percent, int keep, std::uint64_t for_good) {
    testing::internal::CaptureStderr();
    check_disk_space(run.path(), {.bytes = free / 100 * percent, .keep = keep, .for_good = for_good});
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(1, 3, 10), "");
  EXPECT_THAT(said(1, 3, 200), testing::HasSubstr("checkpoint.keep_every keeps about 200 more for good, "));
  EXPECT_EQ(said(30, 2, 0), "");
  EXPECT_THAT(said(30, 3, 0), testing::HasSubstr("; 4 more checkpoints of ")) << "three, and the one being written";
  fs::create_directories(checkpoints_in(run.path()) / step_name(1));
  EXPECT_EQ(said(30, 3, 0), "") << "one of them is there";
  EXPECT_EQ(test::error_of([&] { check_disk_space(run.path(), {.bytes = 2 * free, .keep = 3, .for_good = 0}); }).exit(),
            Exit::io);
}

// Else a run would find it out at its first save. Nobody makes files in /proc.
TEST(DiskSpace, RefusesAFolderThatCannotBeWritten) {
  const test::TempDir run;
  const CheckpointSpace none;
  const auto checkpoints = checkpoints_in(run.path());
  fs::create_directories(checkpoints);
  EXPECT_NO_THROW(check_disk_space(run.path(), none));
  EXPECT_TRUE(fs::is_empty(checkpoints));
  fs::remove(checkpoints);
  fs::create_directory_symlink("/proc", checkpoints);
  const auto error = test::error_of([&] { check_disk_space(run.path(), none); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), testing::HasSubstr("cannot create " + checkpoints.string()));
}

TEST(Complaints, AreMadeOfEncodersOnCpusBesideOthersOnGpus) {
  const Roles roles{.trainers = {0}, .producers = {1, 2, 3}};
  EXPECT_EQ(
      complaint_about_cpu_producers(roles, {"NVIDIA A100", "NVIDIA A10G", "", ""}),
      "ranks 2-3 have no GPU and encode on their CPUs, beside 1 producers with one: if theirs are gone, leave these "
      "nodes out");
  EXPECT_FALSE(complaint_about_cpu_producers(roles, {"NVIDIA A100", "", "", ""})) << "as it was meant";
  EXPECT_FALSE(complaint_about_cpu_producers(roles, {"NVIDIA A100", "NVIDIA A10G", "NVIDIA A10G", "NVIDIA A10G"}));
  EXPECT_FALSE(complaint_about_cpu_producers(all_in_one_roles(2), {"NVIDIA A100", ""}));
}

TEST(BenchRates, AreLinesOrOneArray) {
  const test::TempDir folder;
  const auto step = R"({"bench": "step", "figure": "images", "unit": "images/s", "median": 40})";
  const auto encode = R"({"bench": "encode", "figure": "images", "unit": "images/s", "median": 90.5})";
  for (const auto& text : {fmt::format("{}\n\n{}\n", step, encode), fmt::format("[{},\n {}]\n", step, encode)}) {
    const auto rates = read_bench_rates(folder.write("rates.json", text), 32, 256);
    EXPECT_EQ(rates.train, 40) << text;
    EXPECT_EQ(rates.encode, 90.5) << text;
  }
  const auto file = folder.write("rates.json", fmt::format("[{}, 7]", step));
  try {
    read_bench_rates(file, 32, 256);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find("rates.json, entry 2: not a JSON object"), std::string::npos);
  }
}

// Encoders that 32 trainers take before a run, and during one with the same rates: `wanted` with equal shares of the
// 512 stripes, in whole numbers of stripes `enough`. Rates are not exact to a hundredth of an encoder.
TEST(PlanForecast, CountsEncodersAsTheBalanceLineDoes) {
  const test::TempDir folder;
  const auto rates = folder.path() / "rates";
  const auto preset = preset_configs(Preset::sd2);
  constexpr int trainers = 32, stripes = 512;
  auto config = open_config();
  config.data.stripes.value = stripes;
  constexpr double of_one = 75;  // images a second of an encoder
  const auto forecast = [&](double wanted, int encoders) {
    std::ofstream(rates) << fmt::format(
        "{{\"bench\": \"step\", \"unit\": \"images/s\", \"median\": {}}}\n"
        "{{\"bench\": \"encode\", \"unit\": \"images/s\", \"median\": {}}}\n",
        wanted * of_one / trainers, of_one);
    return forecast_run(parse_cluster(fmt::format("4x8xh100 + {}x1xl4", encoders)), config,
                        {.prices = {}, .rates = rates.string()},
                        {.unet = preset.unet, .vae = preset.vae, .text_encoder = preset.text_encoder});
  };
  const auto during = [&](double wanted, const RunForecast& before, int encoders) {
    const double pace = before.images_per_second;
    const double busy = pace / (of_one * encoders);  // of the encoders' time
    return judge({pace, 1 - pace / (wanted * of_one), of_one * encoders, {.encode = busy, .send_wait = 1 - busy}},
                 {.trainers = trainers, .producers = encoders, .stripes = stripes});
  };
  for (const auto& [wanted, enough] : std::vector<std::pair<double, int>>{
           {63.6, 64}, {64, 64}, {64.005, 64}, {64.02, 74}, {76.6, 86}, {511, 512}, {512.005, 512}}) {
    SCOPED_TRACE(wanted);
    const auto few = forecast(wanted, 48), just_enough = forecast(wanted, enough);
    EXPECT_TRUE(few.is_limited_by_encoders);
    EXPECT_EQ(few.balanced_encoders, enough);
    EXPECT_EQ(during(wanted, few, 48).producers, enough);
    EXPECT_FALSE(during(wanted, few, 48).wants_stripes);
    EXPECT_FALSE(just_enough.is_limited_by_encoders);
    EXPECT_EQ(just_enough.balanced_encoders, enough);
  }
  EXPECT_TRUE(forecast(64.02, 64).is_limited_by_encoders);
  const auto too_few_stripes = forecast(520, 48);
  EXPECT_EQ(too_few_stripes.balanced_encoders, 520) << "with more stripes";
  EXPECT_EQ(during(520, too_few_stripes, 48).producers, stripes);
  EXPECT_TRUE(during(520, too_few_stripes, 48).wants_stripes);
}

// For each pair of kinds, and each of them as trainers: the name that a plan gives makes `train` choose the same ranks.
TEST(PlanStart, NamesOfTrainersFitTheirGpuAlone) {
  int pairs = 0;
  for (const auto& trainer : known_gpus())
    for (const auto& other : known_gpus()) {
      if (&trainer == &other || trainer.is_cpu() || other.is_cpu()) continue;
      SCOPED_TRACE(fmt::format("{} train, {} encode", trainer.name, other.name));
      const auto words = start(fmt::format("1x1x{} + 1x2x{}", trainer.name, other.name), open_config(), {}, &trainer);
      const auto found = std::ranges::find_if(words, [](const auto& word) { return word.starts_with("roles."); });
      ASSERT_NE(found, words.end());
      RolesConfig roles;
      roles.trainer_gpu = found->substr(found->find('=') + 1);
      const std::string driver(other.driver);
      EXPECT_THAT(plan_roles({driver, std::string(trainer.driver), driver}, roles).trainers, ElementsAre(1));
      ++pairs;
    }
  EXPECT_EQ(pairs, 13 * 12);
}

TEST(PlanStart, FilesAndOverridesGoAlong) {
  const config::Inputs inputs = {{"one.yaml", "my configs/two.yaml"},
                                 {"plan.rates=x.json", "duration=2 d", "data.train.path=[a.tar,b.tar]", "optim.lr=1e-4",
                                  "data.train.filters.who='him'"}};
  auto config = open_config();
  config.data.train.path = {"a.tar", "b.tar"};
  EXPECT_THAT(start("2x8xh100", config, inputs),
              ElementsAre("MILLRACE_CONFIG=one.yaml", "sbatch", "-N2", "--ntasks-per-node=8", "-C", "h100",
                          "--gpus-per-node=8", "slurm/variants/single_kind.sbatch", "--config", "'my configs/two.yaml'",
                          "run.dir=RUN", "model.pipeline=PIPELINE", "'duration=2 d'", "'data.train.path=[a.tar,b.tar]'",
                          "optim.lr=1e-4", R"('data.train.filters.who='\''him'\''')"));
}

TEST(PlanStart, NodesOfSeveralShapesAndKinds) {
  const auto config = open_config();
  EXPECT_THAT(start("4x8xh100 + 2x4xh100", config, {}),
              testing::IsSupersetOf({"MILLRACE_CONFIG=/dev/null", "-N6", "-n40", "h100", "--gpus-per-node=4",
                                     "slurm/phase1_256.sbatch"}));
  EXPECT_THAT(start("4x8xa100-80g + 48x1xa10g + 2x4xl4", config, {}),
              testing::IsSupersetOf({"-N54", "-n88", "'[a100*4&a10g*48&l4*2]'", "--gpus-per-node=1"}));
  EXPECT_THAT(start("4x8xa100-80g + 1x4xa100-40g", config, {}), Contains("'[a100-80g*4&a100-40g*1]'"));
  EXPECT_THAT(start("1x2xcpu", config, {}), testing::IsSupersetOf({"--ntasks-per-node=2", "''", "--gpus-per-node=0"}));
}

// A U-Net that goes on at a higher resolution, and no folder that it is in: phase 2.
TEST(PlanStart, PhaseTwoNamesPhaseOne) {
  auto config = open_config();
  config.transform.resolution = 512;
  EXPECT_THAT(start("2x8xh100", config, {}), Not(Contains("PHASE1_DIR=RUN1")));  // from random weights
  config.model.unet.init = ModelConfig::Init::pretrained;
  EXPECT_THAT(start("2x8xh100", config, {}),
              testing::IsSupersetOf({"PHASE1_DIR=RUN1", "-n16", "slurm/phase2_512.sbatch"}));
  config.model.pipeline = {"folder", true};
  EXPECT_THAT(start("2x8xh100", config, {}), Not(Contains("PHASE1_DIR=RUN1")));
}

}  // namespace
}  // namespace millrace
