// Runs whose trainers do not divide the stripes train what one rank trains, also when their number changes on the way.
#include <gtest/gtest.h>

#include <cmath>

#include "e2e/runs.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

// A setting: a U-Net that takes half the time, for shares, order and sums are tried here.
const std::string& small_unet() {
  static const std::string setting = [] {
    auto config = nlohmann::json::parse(read(workshop() / "tiny/unet/config.json"));
    config.update({{"attention_head_dim", {1, 2}},
                   {"block_out_channels", {8, 16}},
                   {"down_block_types", {"CrossAttnDownBlock2D", "DownBlock2D"}},
                   {"norm_num_groups", 4},
                   {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D"}}});
    const auto path = workshop() / "small_unet.json";
    std::ofstream(path) << config;
    return "model.unet.config=" + path.string() + " ";
  }();
  return setting;
}

// Ten stripes with three samples of each in a step: shares of 12 + 9 + 9, of 9 + 6 + 9 + 6, of 6 + 3 + 6 + ... samples.
// The encoders' batch is the default, four steps and a half at once.
std::string train_uneven(const std::string& run, const std::string& settings) {
  return train(run, "batch.global=30 data.stripes=10 batch.micro=5 encode.batch_size=120 'checkpoint.every=2 steps' " +
                        small_unet() + settings);
}

constexpr int reference_steps = 14;

std::string until(int step) {
  return " 'duration=" + std::to_string(step) + " steps' ";
}

// On one rank, a checkpoint every second step, validated and recorded.
const std::string& one_rank() {
  static const std::string run = [] {
    expect_success(train_uneven("one", until(reference_steps) +
                                           "'record.steps=[1,4]' 'validation.every=2 steps' validation.batches=2 "
                                           "checkpoint.keep=100 data.validation.path=" +
                                           (workshop() / "shapes/00003.tar").string()));
    return std::string("one");
  }();
  return run;
}

// That the ids of `run` are those of the first steps of one_rank(), line for line.
void expect_same_ids(const std::string& run, int steps) {
  const auto wanted = lines(workshop() / one_rank() / "ids.jsonl"), ids = lines(workshop() / run / "ids.jsonl");
  ASSERT_EQ(ids.size(), static_cast<std::size_t>(steps)) << run;
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], wanted.at(i)) << run << ", line " << i + 1;
}

std::string weights_at(const std::string& run, int step) {
  const auto out = workshop() / (run + "-exported");
  fs::remove_all(out);
  expect_success(millrace + " export --checkpoint " + checkpoint(run, step).string() + " --out " + out.string() +
                 " weights=raw");
  return (out / "unet/diffusion_pytorch_model.safetensors").string();
}

// Those of one_rank(), exported once for each step.
const Weights& reference_weights(int step) {
  static std::map<int, Weights> kept;
  if (!kept.contains(step)) kept[step] = read_weights(weights_at(one_rank(), step));
  return kept.at(step);
}

void expect_same_weights(const std::string& run, int step) {
  EXPECT_LT(relative_difference(reference_weights(step), read_weights(weights_at(run, step))), 1e-4) << run;
}

// Losses differ by rounding alone, which grows as weights move apart. Of the run's steps `told` have one.
void expect_same_losses(const std::string& reference, const std::string& run, const std::string& name, int steps,
                        int told) {
  const auto wanted = lines(workshop() / reference / "metrics.jsonl"),
             found = lines(workshop() / run / "metrics.jsonl");
  ASSERT_EQ(found.size(), static_cast<std::size_t>(steps)) << run;
  int compared = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].contains(name), wanted.at(i).contains(name)) << run << ", step " << i + 1;
    if (!found[i].contains(name)) continue;
    ++compared;
    EXPECT_NEAR(found[i][name].get<double>(), wanted[i][name].get<double>(), 1e-3 * wanted[i][name].get<double>())
        << run << ", " << name << " of step " << i + 1;
  }
  EXPECT_EQ(compared, told) << run << ", " << name;
}

// Sample by sample in the same order: noise follows from the sample alone, everything else also from sums.
void expect_same_record(const std::string& run, int step) {
  char name[40];
  std::snprintf(name, sizeof name, "records/step-%08d.safetensors", step);
  const auto wanted = workshop() / one_rank() / name, found = workshop() / run / name;
  EXPECT_EQ(SafetensorsFile(wanted).metadata().at("ids"), SafetensorsFile(found).metadata().at("ids"));
  const auto a = read_weights(wanted), b = read_weights(found);
  EXPECT_EQ(a.at("noise"), b.at("noise")) << run << ", step " << step;
  EXPECT_LT(relative_difference(a, b), 1e-3) << run << ", step " << step;
}

TEST(Elastic, AnyNumberOfTrainersTrainsTheSame) {
  constexpr int steps = 4;
  const struct {
    std::string run;
    int ranks;
    std::string settings;
  } cases[] = {{"two", 3, "roles.producers=1"},
               {"three", 3, ""},
               {"three-ddp", 4, "roles.producers=1 parallel.strategy=ddp"},
               {"four", 6, "roles.producers=2"},
               {"four-full", 5, "roles.producers=1 parallel.strategy=full_shard parallel.bucket_mb=0.05"},
               {"seven", 8, "roles.producers=1"}};
  for (const auto& [run, ranks, settings] : cases) {
    expect_success(mpirun(ranks) +
                   train_uneven(run, until(steps) + settings +
                                         " 'record.steps=[1,4]' 'validation.every=2 steps' validation.batches=2 "
                                         "data.validation.path=" +
                                         (workshop() / "shapes/00003.tar").string()));
    expect_same_ids(run, steps);
    expect_same_weights(run, steps);
    expect_same_losses(one_rank(), run, "loss", steps, steps);
    expect_same_losses(one_rank(), run, "grad_norm", steps, steps);
    expect_same_losses(one_rank(), run, "validation_loss", steps, 2);
    expect_same_record(run, 1);
    expect_same_record(run, 4);
  }
}

TEST(Elastic, TheStartTellsUnequalSharesAndWhatElseItWarnsOf) {
  const auto plan = [](int ranks, const std::string& settings) {
    return shell(mpirun(ranks) + train_uneven("planned", until(2) + "--dry-run " + settings));
  };
  const auto usual = plan(3, "'optim.warmup=10 steps' ema.warmup=false");
  for (const char* text : {"stripes 4 3 3", "optim.warmup is 10 steps, longer than the run: at its end",
                           "ema.warmup=false: at the end of the run 100% of the EMA"})
    expect_mentions(usual, text);
  const auto few = plan(6, "roles.producers=2 data.stripes=5");
  for (const char* text :
       {"stripes 2 1 1 1", "a step takes 60% longer than it would if the 4 trainers had equal shares",
        "1 of the 2 producers own 3 stripes each and set the pace"})
    expect_mentions(few, text);
  const auto even = plan(2, "");
  EXPECT_EQ(even.exit_code, 0) << even.output;
  EXPECT_EQ(even.output.find("stripes 5 5"), std::string::npos) << even.output;

  const auto many = plan(6, "data.stripes=5");
  EXPECT_EQ(many.exit_code, 2) << many.output;
  expect_mentions(many, "6 trainers for 5 stripes");
  const auto micro = plan(2, "batch.micro=6");
  EXPECT_EQ(micro.exit_code, 2) << micro.output;
  expect_mentions(micro, "batch.micro must divide 15");
}

// Runs every rank by a script that tells its process id, and sends SIGTERM to one of them when step 7 is logged.
std::string terminate_one(int ranks, int rank, const std::string& run, const std::string& command) {
  const auto script = workshop() / "tell_pid";
  std::ofstream(script) << "echo $$ > \"$1-$OMPI_COMM_WORLD_RANK\"; shift; exec \"$@\"\n";
  const auto pids = (workshop() / (run + "-pid")).string();
  return mpirun(ranks) + "sh " + script.string() + " " + pids + " " + command + " & pid=$!; " +
         wait_for(workshop() / run / "metrics.jsonl", "\"step\":7") + "; kill -TERM $(cat " + pids + "-" +
         std::to_string(rank) + "); wait $pid";
}

int step_of(const std::string& run) {
  return nlohmann::json::parse(read(workshop() / run / "STATE"))["step"];
}

// Four trainers, three, two that are told to stop, three that split parameters too, and four again: each goes on where
// the last one stopped.
TEST(Elastic, LivesOnOtherNumbersOfTrainersAreOneRun) {
  const std::string run = "lives", keep = "checkpoint.keep=100 ";
  expect_success(mpirun(4) + train_uneven(run, until(3) + keep));
  expect_success(mpirun(4) + train_uneven(run, until(5) + keep + "roles.producers=1"));
  const auto stopped =
      shell(terminate_one(4, 1, run, train_uneven(run, "'duration=100000 steps' roles.producers=2 " + keep)));
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  const int step = step_of(run);
  ASSERT_GE(step, 7);
  expect_success(mpirun(3) + train_uneven(run, until(step + 1) + keep + "parallel.strategy=full_shard"));
  expect_success(mpirun(5) + train_uneven(run, until(step + 4) + keep + "roles.producers=1"));

  const int last = step + 4;
  if (last > reference_steps) expect_success(train_uneven(one_rank(), until(last) + keep));
  expect_same_ids(run, last);
  const int compared = std::min(last, reference_steps) / 2 * 2;  // both runs have saved there
  expect_same_weights(run, compared);
}

// Archives of two images each, fewer than the stripes and more than auto would ever plan.
std::string train_many_stripes(const std::string& run, const std::string& settings) {
  static const auto archives = [] {
    const auto out = workshop() / "many";
    expect_success(shapes + " make --out " + out.string() + " --count 1040 --per-archive 2 --side 32");
    return out.string();
  }();
  return train(run, "data.train.path=" + archives + " batch.global=640 data.stripes=640 batch.micro=32 " +
                        "encode.batch_size=120 'checkpoint.every=1 steps' " + small_unet() + settings);
}

TEST(Elastic, MoreStripesThanAutoPlansAndTrainersThatDoNotDivideThem) {
  expect_success(train_many_stripes("many-one", until(2)));
  expect_success(mpirun(3) + train_many_stripes("many-three", until(1)));
  const auto resumed = shell(mpirun(4) + train_many_stripes("many-three", until(2) + "roles.producers=1"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  expect_mentions(resumed, "640 stripes");
  expect_mentions(resumed, "stripes 214 213 213");
  EXPECT_EQ(read(workshop() / "many-three/ids.jsonl"), read(workshop() / "many-one/ids.jsonl"));
  EXPECT_LT(relative_difference(read_weights(weights_at("many-one", 2)), read_weights(weights_at("many-three", 2))),
            1e-4);
}

TEST(Elastic, FourThousandStripesCanBePlanned) {
  const auto outcome = shell(
      mpirun(3) + train("huge", until(1) + "--dry-run data.train.type=synthetic data.train.path=[] "
                                           "data.train.limit=5000 batch.global=4096 data.stripes=4096 batch.micro=32"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "stripes 1366 1365 1365");
}

std::string autoencoder(const std::string& run, const std::string& settings) {
  return millrace + " train-autoencoder run.dir=" + (workshop() / run).string() +
         " run.device=cpu model.pipeline=" + (workshop() / "tiny").string() +
         " data.train.path=" + (workshop() / "shapes").string() +
         " transform.resolution=32 batch.global=16 batch.micro=2 data.stripes=8 data.shuffle_block=2 log.ids=true "
         "optim.lr=1e-4 'optim.warmup=0 steps' 'log.every=1 steps' 'checkpoint.every=3 steps' ema.enabled=false " +
         settings;
}

double scaling_factor(const std::string& run) {
  return nlohmann::json::parse(read(workshop() / run / "pipeline/vae/config.json"))["scaling_factor"];
}

TEST(Elastic, AnAutoencoderToo) {
  expect_success(autoencoder("vae-one", until(3)));
  expect_success(mpirun(3) + autoencoder("vae-three", until(2)));
  expect_success(mpirun(4) + autoencoder("vae-three", until(3)));
  EXPECT_EQ(read(workshop() / "vae-three/ids.jsonl"), read(workshop() / "vae-one/ids.jsonl"));
  for (const char* name : {"loss", "loss_l1", "loss_mse", "loss_kl"})
    expect_same_losses("vae-one", "vae-three", name, 3, 3);
  // As a life leaves it that was killed behind DONE.
  const auto state = workshop() / "vae-one/STATE";
  const auto ended = read(state);
  fs::remove(state);
  expect_success(autoencoder("vae-one", until(3)));
  EXPECT_EQ(read(state), ended);
  const auto weights = [](const std::string& run) {
    return read_weights(workshop() / run / "pipeline/vae/diffusion_pytorch_model.safetensors");
  };
  EXPECT_LT(relative_difference(weights("vae-one"), weights("vae-three")), 1e-4);
  EXPECT_NEAR(scaling_factor("vae-three"), scaling_factor("vae-one"), 1e-3 * scaling_factor("vae-one"));
  // Parameters are gathered in forward, also when the latents are measured, and one rank has fewer micro-batches.
  expect_success(mpirun(3) +
                 autoencoder("vae-full", until(3) + "parallel.strategy=full_shard parallel.bucket_mb=0.02"));
  EXPECT_LT(relative_difference(weights("vae-one"), weights("vae-full")), 1e-4);
  EXPECT_NEAR(scaling_factor("vae-full"), scaling_factor("vae-one"), 1e-3 * scaling_factor("vae-one"));
  const auto unsaved = shell(autoencoder("vae-unsaved", until(1) + "checkpoint.every=null"));
  EXPECT_EQ(unsaved.exit_code, 2) << unsaved.output;
  expect_mentions(unsaved, "checkpoint.every");
}

}  // namespace
}  // namespace millrace::e2e
