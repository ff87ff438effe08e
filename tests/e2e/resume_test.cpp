// Where a run goes on from, and what may be changed then; the settings that must not change what is trained.
#include <gtest/gtest.h>

#include <bit>

#include "e2e/runs.h"
#include "e2e/weights.h"
#include "millrace/core/process_name.h"

namespace millrace::e2e {
namespace {

const std::string four_steps = " 'duration=4 steps' 'checkpoint.every=2 steps' ";

const std::string& straight() {
  static const std::string run = [] {
    expect_success(train("straight", four_steps));
    return std::string("straight");
  }();
  return run;
}

TEST(Resume, AnotherSetupIsRefusedUnlessTheUserInsists) {
  expect_success(train("changed", "'duration=2 steps'"));
  const auto ids = read(workshop() / "changed/ids.jsonl");
  const std::string changes = four_steps + "run.seed=7 transform.flip=0.5 ";
  const auto refused =
      shell(train("changed", changes + "objective.prediction=v_prediction tokenizer.pad_id=5 data.images.exif=apply "
                                       "data.shuffle_block=7 'data.train.filters={width: \">=1\"}'"));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "checkpoint.allow_changes=true");
  for (const std::string change :
       {"run.seed: 420 -> 7", "transform.flip: 0 -> 0.5", "objective.prediction: epsilon -> v_prediction",
        "tokenizer.pad_id: auto -> 5", "data.images.exif: ignore -> apply", "data.shuffle_block: 2 -> 7",
        "data.train.filters: {} -> {width: "})
    expect_mentions(refused, "\n  " + change);  // in the error's list: others are logged, and allowed
  EXPECT_EQ(read(workshop() / "changed/ids.jsonl"), ids);

  const auto allowed = shell(train("changed", changes + "optim.lr=1e-2 checkpoint.allow_changes=true"));
  EXPECT_EQ(allowed.exit_code, 0) << allowed.output;
  expect_mentions(allowed, "continuing although this changed: run.seed: 420 -> 7");
  expect_mentions(allowed, "the learning rate of step 3 is 0.01; by the settings of the checkpoint it would be 0.001");
  const auto all = read(workshop() / "changed/ids.jsonl");
  EXPECT_TRUE(all.starts_with(ids)) << all;
  EXPECT_EQ(lines(workshop() / "changed/ids.jsonl").size(), 4u);
  EXPECT_NE(all, read(workshop() / straight() / "ids.jsonl")) << "from step 3 on by the new seed";
}

// Scratch folders are purged, and data are staged to a disk of the job: the same archives at another place.
TEST(Resume, DataThatHaveMovedAreTheSameData) {
  expect_success(train("moved", "'duration=2 steps'"));
  const auto elsewhere = workshop() / "elsewhere";
  fs::copy(workshop() / "shapes", elsewhere, fs::copy_options::recursive);
  const auto resumed = shell(train("moved", four_steps + "data.train.path=" + elsewhere.string()));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  expect_mentions(resumed, "changed since the checkpoint: data.train.path");
  EXPECT_EQ(read(workshop() / "moved/ids.jsonl"), read(workshop() / straight() / "ids.jsonl"));

  for (const auto& entry : fs::directory_iterator(elsewhere))
    if (entry.path().extension() == ".tar") fs::resize_file(entry.path(), fs::file_size(entry.path()) + 512);
  const auto other = shell(train("moved", "'duration=6 steps' data.train.path=" + elsewhere.string()));
  EXPECT_EQ(other.exit_code, 2) << other.output;

  const std::string changes = "checkpoint.allow_changes=true run.seed=7 data.train.path=" + elsewhere.string();
  const auto allowed = shell(train("moved", "'duration=6 steps' " + changes));
  EXPECT_EQ(allowed.exit_code, 0) << allowed.output;
  expect_mentions(allowed, "unless run.seed is another one");
}

// Eight stripes of 12 rows. After three steps, blocks of five are in work: with other blocks, or another order of all,
// a whole pass follows. (12 rows of a stripe are one split.)
TEST(Resume, AnotherOrderLosesNoSample) {
  for (const std::string change : {"data.shuffle_block=7", "run.seed=7"}) {
    const auto run = "reordered-" + change.substr(0, change.find('.'));
    const auto settings = "optim.lr=0 'checkpoint.every=3 steps' data.shuffle_block=5 ";
    expect_success(train(run, settings + std::string("'duration=3 steps' ")));
    const auto resumed = shell(train(run, settings + ("'duration=15 steps' checkpoint.allow_changes=true " + change)));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
    expect_mentions(resumed, "come twice");
    const auto steps = lines(workshop() / run / "ids.jsonl");
    ASSERT_EQ(steps.size(), 15u);
    std::set<std::string> seen;
    for (std::size_t i = 3; i < steps.size(); ++i)
      for (const auto& id : steps[i]["ids"]) seen.insert(id.get<std::string>());
    EXPECT_EQ(seen.size(), 96u) << change;
  }
}

// Phase 2 starts from what DONE names, so it must not outlive the run that wrote it.
TEST(Resume, DoneGoesWithTheFirstCheckpointOfALongerStart) {
  expect_success(train("longer", "'duration=2 steps'"));
  ASSERT_TRUE(fs::exists(workshop() / "longer/DONE"));
  const auto killed = shell(signal_once(train("longer", "'duration=100000 steps'"), "KILL",
                                        workshop() / "longer/log/rank-00000.log", "checkpoint .*step-00000004"));
  ASSERT_NE(killed.exit_code, 0) << killed.output;
  EXPECT_TRUE(fs::exists(checkpoint("longer", 4)));
  EXPECT_FALSE(fs::exists(workshop() / "longer/DONE"));
}

TEST(Resume, NeverIsForNewRuns) {
  const auto command = train("never", "'duration=2 steps' checkpoint.resume=never");
  expect_success(command);
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  expect_mentions(outcome, "checkpoint.resume=never");
}

TEST(Resume, FromACheckpointOfAnotherRun) {
  const auto from = "checkpoint.resume=" + checkpoint(straight(), 2).string();
  expect_success(train("branch", four_steps + from));
  const auto ids = lines(workshop() / "branch/ids.jsonl"), wanted = lines(workshop() / straight() / "ids.jsonl");
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0], wanted[2]);
  EXPECT_EQ(ids[1], wanted[3]);
  EXPECT_EQ(largest_difference(read_weights(weights_of("branch")), read_weights(weights_of(straight()))), 0.0);
}

// The U-Net would see other latents, or other noise, from one step to the next.
TEST(Resume, WhatChangedInTheDataIsToldThroughALinkToo) {
  fs::create_directory_symlink(checkpoint(straight(), 2), workshop() / "best");
  const auto fewer =
      shell(train("of-link", four_steps + "checkpoint.resume=" + (workshop() / "best").string() +
                                 " 'data.train.path=" + (workshop() / "shapes").string() + "/{00000..00002}.tar'"));
  EXPECT_EQ(fewer.exit_code, 2) << fewer.output;
  expect_mentions(fewer, "data: 1 archives removed: ");
}

TEST(Resume, OtherEncodersOrNoiseUnderTheSamePathAreRefused) {
  const auto pipeline = workshop() / "replaced", other = workshop() / "other-pipeline";
  fs::copy(workshop() / "tiny", pipeline, fs::copy_options::recursive);
  expect_success(millrace + " init --preset tiny seed=7 --out " + other.string());
  const auto command = train("other-vae", four_steps + "model.pipeline=" + pipeline.string() + " ");
  expect_success(train("other-vae", "'duration=2 steps' model.pipeline=" + pipeline.string()));
  const auto take_encoders_of = [&](const fs::path& folder) {
    for (const char* weights : {"vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"})
      fs::copy_file(folder / weights, pipeline / weights, fs::copy_options::overwrite_existing);
  };
  take_encoders_of(other);
  auto refused = shell(command);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "model.pipeline: vae.weights: ");
  expect_mentions(refused, "model.pipeline: text_encoder.weights: ");
  take_encoders_of(workshop() / "tiny");

  const auto tokens = pipeline / "tokenizer/special_tokens_map.json";
  const auto special = read(tokens);
  auto other_special = nlohmann::json::parse(special);
  other_special["pad_token"] = "!";
  std::ofstream(tokens) << other_special;
  refused = shell(command);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "model.pipeline: tokenizer.files: ");
  std::ofstream(tokens) << special;

  const auto scheduler = pipeline / "scheduler/scheduler_config.json";
  const auto text = read(scheduler);
  auto config = nlohmann::json::parse(text);
  config["beta_end"] = 0.02;
  std::ofstream(scheduler) << config;
  refused = shell(command);
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "model.pipeline: scheduler.beta_end: 0.012 -> 0.02");
  config = nlohmann::json::parse(text);
  config["timestep_spacing"] = "trailing";  // how pictures are painted is free
  std::ofstream(scheduler) << config;
  expect_success(command);
}

// The path is the same; what it says is not.
TEST(Resume, OtherPromptsOfTheClassesAreRefused) {
  const auto images = workshop() / "classes", prompts = workshop() / "prompts.json";
  expect_success("mkdir " + images.string() + " && for tar in " + (workshop() / "shapes").string() +
                 "/*.tar; do tar -xf $tar -C " + images.string() + "; done");
  std::ofstream list(workshop() / "classes.jsonl");
  for (const auto& entry : fs::recursive_directory_iterator(images))
    if (entry.path().extension() == ".jpg" || entry.path().extension() == ".png")
      list << nlohmann::json{{"path", entry.path().string()}, {"label", 0}} << "\n";
  list.close();
  const auto command =
      train("of-classes", "data.train.type=class data.train.path=" + (workshop() / "classes.jsonl").string() +
                              " data.train.idx_to_prompt=" + prompts.string() + " ");
  std::ofstream(prompts) << R"(["a cat"])";
  expect_success(command + "'duration=1 steps'");
  std::ofstream(prompts) << R"(["a tram"])";
  const auto refused = shell(command + "'duration=2 steps'");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "data.train.idx_to_prompt: \"");
  std::ofstream(prompts) << R"(["a cat"])";
  expect_success(command + "'duration=2 steps'");
  const auto moved = workshop() / "moved-prompts.json";
  fs::rename(prompts, moved);
  expect_success(command + "'duration=3 steps' data.train.idx_to_prompt=" + moved.string());
}

// What newer versions of diffusers write into it tells nothing of the network.
TEST(Resume, ARewrittenConfigOfTheModelIsTheSameModel) {
  const auto pipeline = workshop() / "rewritten", file = pipeline / "unet/config.json";
  fs::copy(workshop() / "tiny", pipeline, fs::copy_options::recursive);
  const auto command = [&](int steps) {
    return train("of-rewritten", "'duration=" + std::to_string(steps) + " steps' model.pipeline=" + pipeline.string());
  };
  expect_success(command(1));
  auto config = nlohmann::json::parse(read(file));
  config.update({{"_diffusers_version", "0.99.0"},
                 {"_name_or_path", "elsewhere"},
                 {"time_embedding_dim", nullptr},
                 {"dropout", 0.0},
                 {"attention_type", "default"},
                 {"sample_size", 96}});
  std::ofstream(file) << config;
  expect_success(command(2));
  config["layers_per_block"] = 2;
  std::ofstream(file) << config;
  const auto refused = shell(command(3));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "\n  model.layers_per_block: 1 -> 2");
  EXPECT_EQ(refused.output.find("block_out_channels"), std::string::npos) << refused.output;
}

// It would end while it restores, with the run's files rewritten.
TEST(Resume, AnotherNetworkIsRefusedWhateverIsAllowed) {
  const auto other = workshop() / "other-network.json";
  auto config = nlohmann::json::parse(read(workshop() / "tiny/unet/config.json"));
  config["layers_per_block"] = 2;
  std::ofstream(other) << config;
  const std::string run = "of-another-network";
  expect_success(train(run, "'duration=2 steps'"));
  const auto state = read(workshop() / run / "STATE"), written = read(workshop() / run / "config.yaml");
  for (const std::string allow : {"", " checkpoint.allow_changes=true"}) {
    const auto refused = shell(train(run, four_steps + "model.unet.config=" + other.string() + allow));
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    expect_mentions(refused, "holds the weights of another network than that of model.unet.config");
    expect_mentions(refused, "\n  model.layers_per_block: 1 -> 2");
    EXPECT_EQ(refused.output.find("or say checkpoint.allow_changes"), std::string::npos) << refused.output;
    EXPECT_EQ(read(workshop() / run / "STATE"), state);
    EXPECT_EQ(read(workshop() / run / "config.yaml"), written);
  }
  config["layers_per_block"] = 1;
  config["norm_eps"] = 1e-4;  // the same tensors
  std::ofstream(other) << config;
  expect_success(train(run, four_steps + "checkpoint.allow_changes=true model.unet.config=" + other.string()));
}

// What a key stood for, and what it stands for now, is what counts.
TEST(Resume, AnotherSpellingIsTheSameSetup) {
  const std::string run = "respelled";
  expect_success(train(run, "'duration=2 steps' 'data.train.filters={width: \">=1\"}'"));
  const auto manifest = nlohmann::json::parse(read(checkpoint(run, 2) / "MANIFEST.json"));
  const auto stripes = manifest.at("data").at("stripes").get<int>();
  const auto resumed = shell(train(run, four_steps + "tokenizer.mode=hf data.stripes=" + std::to_string(stripes) +
                                            " 'data.train.filters={width: \">= 1.0\"}'"));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.output;
  EXPECT_EQ(resumed.output.find("come twice"), std::string::npos) << resumed.output;
  EXPECT_EQ(read(workshop() / run / "ids.jsonl"), read(workshop() / straight() / "ids.jsonl"));
  const auto other = shell(train(run,
                                 "'duration=5 steps' tokenizer.mode=open_clip data.stripes=1 "
                                 "'data.train.filters={width: \">1\"}'"));
  EXPECT_EQ(other.exit_code, 2) << other.output;
  for (const char* key : {"tokenizer.mode", "data.stripes", "data.train.filters"})
    expect_mentions(other, std::string("\n  ") + key + ": ");
}

TEST(Resume, AnotherScheduleByTheObjectiveIsRefusedToo) {
  const std::string zero = "objective.prediction=v_prediction objective.zero_terminal_snr=true ";
  const auto longer = "'duration=3 steps' objective.prediction=v_prediction ";
  expect_success(train("zero-snr", "'duration=2 steps' " + zero));
  const auto refused = shell(train("zero-snr", longer));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  expect_mentions(refused, "\n  objective.zero_terminal_snr: true -> false");
  EXPECT_EQ(refused.output.find("model.pipeline: "), std::string::npos) << refused.output;
  expect_success(train("zero-snr", "'duration=3 steps' " + zero));
}

// As on clusters whose home is small.
TEST(Resume, CheckpointsMayLieBehindALink) {
  const auto elsewhere = workshop() / "scratch";
  fs::create_directories(elsewhere);
  fs::create_directories(workshop() / "linked");
  fs::create_directory_symlink(elsewhere, workshop() / "linked/checkpoints");
  expect_success(train("linked", "'duration=2 steps' 'checkpoint.every=1 steps'"));
  expect_success(train("linked", four_steps + "'checkpoint.every=1 steps'"));
  EXPECT_EQ(checkpoints("linked"), (std::set<std::string>{"step-00000002", "step-00000003", "step-00000004"}));
}

TEST(Resume, ACheckpointWithNothingLeftToTrainLeavesAnotherFolderAlone) {
  const auto outcome =
      shell(train("nothing-left", four_steps + "checkpoint.resume=" + checkpoint(straight(), 4).string()));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  expect_mentions(outcome, "nothing to train in");
  EXPECT_FALSE(fs::exists(workshop() / "nothing-left"));
}

// evaluate or report of another machine may be at work beside it.
TEST(Resume, WithNothingLeftToTrainTheRemainsOfAKilledLifeGo) {
  const auto command = train("ended", four_steps);
  expect_success(command);
  const auto run = workshop() / "ended";
  fs::create_directories(run / "fault");
  fs::create_directories(run / "checkpoints/step-00000002.trash");
  const std::string others = ".tmp-0123456789abcdef-1";
  const std::vector<fs::path> remains = {run / "LEASE", run / "fault/rank-00001.json",
                                         run / "checkpoints/step-00000002.trash/shard", run / ("STATE.next" + others),
                                         run / ("ids.jsonl.beyond-step-00000002" + others)};
  const auto at_work = {run / ("evaluation.jsonl" + others), run / ("report.html" + others)};
  for (const auto& file : remains) std::ofstream(file) << "{";
  for (const auto& file : at_work) std::ofstream(file) << "{";
  const auto own = process_name();  // beyond pid_max; one that makes no sense would be watched for a minute
  std::ofstream(run / "LEASE") << nlohmann::json{{"nonce", "of the killed one"},
                                                 {"process", own.substr(0, own.find('-')) + "-4194999"},
                                                 {"host", "n7"},
                                                 {"job", 0},
                                                 {"restart", 0},
                                                 {"step", 0},
                                                 {"renewals", 0}};
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "nothing to train");
  for (const auto& file : remains) EXPECT_FALSE(fs::exists(file)) << file;
  EXPECT_FALSE(fs::exists(run / "checkpoints/step-00000002.trash"));
  for (const auto& file : at_work) EXPECT_TRUE(fs::exists(file)) << file;

  expect_success(train("ended", "'duration=5 steps'"));
  for (const auto& file : at_work) EXPECT_TRUE(fs::exists(file)) << file;
}

// Were the newer ones damaged, the next start would go on from one of another history.
TEST(Resume, FromAnotherRunAFoldersOwnCheckpointsAreOfAnotherTime) {
  expect_success(train("mixed", "'duration=3 steps' 'checkpoint.every=1 steps' optim.lr=0.5"));
  expect_success(train("mixed", four_steps + "checkpoint.resume=" + checkpoint(straight(), 2).string()));
  std::multiset<std::string> names;
  for (const auto& entry : fs::directory_iterator(workshop() / "mixed/checkpoints"))
    names.insert(entry.path().extension().string().starts_with(".abandoned-") ? "abandoned"
                                                                              : entry.path().filename().string());
  EXPECT_EQ(names, (std::multiset<std::string>{"abandoned", "abandoned", "abandoned", "step-00000004"}));
}

// Its own checkpoint, however it is spelled, is no other run's: only what is newer is put aside.
TEST(Resume, FromItsOwnCheckpointARunKeepsWhatIsOlder) {
  expect_success(train("back", "'duration=3 steps' 'checkpoint.every=1 steps'"));
  const auto command = train("back", "'duration=4 steps' 'checkpoint.every=4 steps' checkpoint.keep=9 ");
  fs::create_directory_symlink("checkpoints/step-00000002", workshop() / "back/best");
  for (const std::string from :
       {"back/checkpoints/step-00000002/", "back/best", "back/../back/checkpoints/step-00000002"}) {
    expect_success(command + "checkpoint.resume=" + (workshop() / "back").parent_path().string() + "/" + from);
    for (const int step : {1, 2, 4})
      EXPECT_TRUE(fs::exists(checkpoint("back", step))) << "step " << step << " from " << from;
    EXPECT_FALSE(fs::exists(checkpoint("back", 3))) << from;
  }
}

// Phase 2 would start from the checkpoint that DONE names.
TEST(Resume, WhatIsNotSavedIsNotCalledSaved) {
  expect_success(train("unsaved", "'duration=2 steps'"));
  const auto outcome = shell(train("unsaved", four_steps + "checkpoint.every=null"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "nothing was saved (checkpoint.every=null)");
  EXPECT_EQ(outcome.output.find("millrace export"), std::string::npos) << outcome.output;
  const auto done = nlohmann::json::parse(read(workshop() / "unsaved/DONE"));
  EXPECT_EQ(done.at("step"), 4);
  EXPECT_TRUE(done.at("checkpoint").is_null()) << done;
}

// Before the first step there is nothing to save, and no figure to tell.
TEST(Resume, AnEndBeforeTheFirstStepSaysSo) {
  const auto outcome = shell(train("early", four_steps + "'data.train.filters={width: \">=9999\"}'"));
  EXPECT_EQ(outcome.exit_code, 77) << outcome.output;
  expect_mentions(outcome, "next            mend what the error tells, then the same command again: no step was taken");
  for (const char* figure : {"checkpoint.every=null", "  loss  ", "  balance "})
    EXPECT_EQ(outcome.output.find(figure), std::string::npos) << outcome.output;
  const auto ledger = nlohmann::json::parse(read(workshop() / "early/ledger.json"));
  EXPECT_GT(ledger["rows"], 0) << ledger;
  EXPECT_EQ(ledger["rejected"]["filtered"], ledger["rows"]) << ledger;
}

// Who presses Ctrl-C sees that it was heard, and why the run has ended.
TEST(Resume, CtrlCIsAnswered) {
  const auto outcome = shell(signal_once(train("interrupted", "'duration=4000 steps' 'log.every=1 steps'"), "INT",
                                         workshop() / "interrupted/metrics.jsonl", "\"step\":2,"));
  EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
  expect_mentions(outcome, "stopping; Ctrl-C again within 5 seconds ends at once");
  expect_mentions(outcome, " in training): signal 2 (Interrupt)");
}

// As it was, the command would go back to where it began.
TEST(Resume, ARunThatBeganAtAPathSaysHowItGoesOn) {
  const auto command = train("began-elsewhere", "'duration=4000 steps' 'log.every=1 steps' ");
  const auto from = checkpoint(straight(), 2).string();
  const auto metrics = workshop() / "began-elsewhere/metrics.jsonl";
  const auto stop_at = [&](const std::string& what, int step) {
    const auto outcome = shell(signal_once(what, "TERM", metrics, "\"step\":" + std::to_string(step) + ","));
    EXPECT_EQ(outcome.exit_code, 75) << outcome.output;
    expect_mentions(outcome,
                    "next            the same command with checkpoint.resume=auto: it resumes from the checkpoint");
  };
  stop_at(command + "checkpoint.resume=" + from, 3);
  const auto reached = nlohmann::json::parse(read(workshop() / "began-elsewhere/STATE")).at("step").get<int>();
  stop_at("MILLRACE_TYPED_RESUME=" + from + " " + command, reached + 3);  // as supervise starts it again
  const auto environment = nlohmann::json::parse(read(workshop() / "began-elsewhere/environment.json"));
  EXPECT_EQ(environment.at("typed_resume").get<std::string>(), from) << "for the report";
}

TEST(Resume, APathWithoutACheckpointIsNamed) {
  const auto path = (workshop() / straight() / "checkpoints/step-00000099").string();
  const auto outcome = shell(train("astray", four_steps + "checkpoint.resume=" + path));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  expect_mentions(outcome, path);
}

// But for the order in which the gradients of a tensor that is used twice are added; see NOTE [Adam and noise].
TEST(Settings, GradientCheckpointingTrainsTheSame) {
  expect_success(train("recomputed", four_steps + "model.gradient_checkpointing=true"));
  EXPECT_EQ(read(workshop() / "recomputed/ids.jsonl"), read(workshop() / straight() / "ids.jsonl"));
  EXPECT_LT(relative_difference(read_weights(weights_of("recomputed")), read_weights(weights_of(straight()))), 1e-6);
}

// Other kernels, and another order of the same weights in the checkpoint, from which either goes on.
TEST(Settings, ChannelsLastTrainsTheSame) {
  expect_success(train("pixelwise", "'duration=2 steps' 'checkpoint.every=2 steps' model.channels_last=true"));
  expect_success(train("pixelwise", four_steps + "model.channels_last=false"));
  const auto weights_by_pixels = [](int step) {
    return count(read(checkpoint("pixelwise", step) / "MANIFEST.json"), "\"channels_last\": true");
  };
  EXPECT_GT(weights_by_pixels(2), 0);
  EXPECT_EQ(weights_by_pixels(4), 0);
  EXPECT_LT(relative_difference(read_weights(weights_of("pixelwise")), read_weights(weights_of(straight()))), 1e-5);
}

// The kernels for GPUs, by their twins.
TEST(Settings, FusedKernelsTrainTheSame) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const auto settings = four_steps + "model.channels_last=true model.dtype=" + dtype + " ";
    expect_success(train("fused-" + dtype, settings + "model.fused_kernels=true"));
    expect_success(train("not-fused-" + dtype, settings + "model.fused_kernels=false"));
    const auto tells_of_kernels = [](const std::string& run) {
      return count(read(workshop() / run / "log/rank-00000.log"), " by our kernels, ");
    };
    EXPECT_EQ(tells_of_kernels("fused-" + dtype), 1);
    EXPECT_EQ(tells_of_kernels("not-fused-" + dtype), 0);
    const auto fused = read_weights(weights_of("fused-" + dtype)),
               other = read_weights(weights_of("not-fused-" + dtype));
    if (dtype == "float32")
      EXPECT_LT(mean_difference(fused, other), 5e-6);
    else
      EXPECT_LT(relative_difference(fused, other), 1e-2);
  }
  // Every parameter in a bucket of its own: backward finds what it reads only if it asks for it.
  const auto whole = "parallel.strategy=full_shard parallel.bucket_mb=1e-6 model.channels_last=true " + four_steps;
  expect_success(mpirun(2) + train("fused-shards", whole + "model.fused_kernels=true"));
  EXPECT_LT(relative_difference(read_weights(weights_of("fused-shards")), read_weights(weights_of("fused-float32"))),
            1e-5);
}

// Dropout draws from a generator that no checkpoint holds, and validation draws nothing from it.
TEST(Settings, ARunThatGoesOnDropsTheSame) {
  auto config = nlohmann::json::parse(read(workshop() / "tiny/unet/config.json"));
  config["dropout"] = 0.1;
  const auto path = workshop() / "dropout.json";
  std::ofstream(path) << config;
  const std::string dropping = "model.unet.config=" + path.string() + " ";
  const std::string validated = "'validation.every=1 steps' validation.batches=1 data.validation.path=" +
                                (workshop() / "shapes/00003.tar").string() + " ";
  expect_success(train("dropping-straight", four_steps + dropping + validated));
  expect_success(train("dropping", "'duration=2 steps' 'checkpoint.every=1 steps' " + dropping));
  expect_success(train("dropping", four_steps + dropping));
  EXPECT_EQ(read(weights_of("dropping")), read(weights_of("dropping-straight")));
  EXPECT_NE(read(weights_of("dropping")), read(weights_of(straight())));
}

// In bfloat16 the network computes, in float32 the optimizer: the weights move, stay close to those of float32, and
// have digits that bfloat16 has not.
TEST(Settings, ABfloat16ModelKeepsFloat32Weights) {
  expect_success(train("half", four_steps + "model.dtype=bfloat16"));
  EXPECT_EQ(read(workshop() / "half/ids.jsonl"), read(workshop() / straight() / "ids.jsonl"));
  const auto weights = read_weights(weights_of("half"));
  const double difference = relative_difference(read_weights(weights_of(straight())), weights);
  EXPECT_GT(difference, 0);
  EXPECT_LT(difference, 0.01);
  std::size_t all = 0, exact = 0;
  for (const auto& [name, values] : weights)
    for (const float value : values) ++all, exact += (std::bit_cast<std::uint32_t>(value) & 0xffff) == 0;
  EXPECT_LT(exact, all / 10);
}

}  // namespace
}  // namespace millrace::e2e
