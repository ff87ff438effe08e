// What `millrace evaluate` finds out before it paints, and what is left when its last file cannot be written. In a
// world of one, on the networks and pictures of tests/golden/evaluate.
#include "evaluate/scorer.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "error_of.h"
#include "evaluate/checkpoint_watch.h"
#include "evaluate/evaluation.h"
#include "evaluate/protocol.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/image/decode.h"
#include "millrace/image/png.h"
#include "millrace/image/resize_image.h"
#include "millrace/models/tensors.h"
#include "test_data.h"

namespace millrace {
namespace {

fs::path golden(const std::string& name) {
  return test::data_dir() / "evaluate" / name;
}

const Session& alone() {
  static World world;
  static const Session session{world, torch::kCPU, 1};
  return session;
}

TEST(Scorer, RefusesAReferenceOfAnotherWidth) {
  const test::TempDir dir;
  const auto file = dir / "reference.safetensors";
  EvaluateConfig config;
  config.metrics = {EvaluateConfig::Metric::fid, EvaluateConfig::Metric::kid};
  config.features = golden("plain.pt").string();
  config.reference = file.string();
  write_tensors(file, {{"features", torch::rand({4, 3})}});
  const auto error = test::error_of([&] { (void)Scorer(alone(), config); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("evaluate.reference has 3 features"), std::string::npos) << error.what();
  write_tensors(file, {{"features", torch::rand({4, 10})}});
  (void)Scorer(alone(), config);
}

// Every five seconds for as long as a run lasts, and a manifest has a line for each part of each tensor.
TEST(CheckpointWatch, ReadsAManifestAgainOnlyWhenItIsAnotherOne) {
  const test::TempDir run;
  const auto save = [&](std::int64_t step, int seed) {
    const auto checkpoint = checkpoints_in(run.path()) / step_name(step);
    fs::create_directories(checkpoint);
    CheckpointManifest::write(checkpoint, {{"seed", seed}}, {}, {});
    return checkpoint;
  };
  save(2, 1);
  const auto unscored = save(4, 1);
  std::map<std::int64_t, int> read;
  CheckpointWatch watch(alone(), run.path(), 60, [&](const CheckpointName& name, const CheckpointManifest&) {
    ++read[name.step];
    return name.step == 2;
  });
  for (int look = 1; look <= 3; ++look) EXPECT_EQ(watch.next(), unscored);
  EXPECT_EQ(read, (std::map<std::int64_t, int>{{2, 1}, {4, 3}}));
  save(2, 2);
  EXPECT_EQ(watch.next(), unscored);
  EXPECT_EQ(read.at(2), 2) << "the run went back and took it anew";
}

// How often files in a folder were opened since it was made.
class Opened {
 public:
  // With the closings, because equal events in a row count once.
  explicit Opened(const fs::path& folder) { ::inotify_add_watch(queue_, folder.c_str(), IN_OPEN | IN_CLOSE_NOWRITE); }
  ~Opened() { ::close(queue_); }
  std::size_t count() const {
    std::size_t opened = 0;
    std::array<char, 4096> events;
    for (ssize_t got; (got = ::read(queue_, events.data(), events.size())) > 0;)
      for (ssize_t at = 0; at < got;) {
        inotify_event event;
        std::memcpy(&event, events.data() + at, sizeof event);
        at += static_cast<ssize_t>(sizeof event + event.len);
        if (event.mask & IN_OPEN) ++opened;
      }
    return opened;
  }

 private:
  const int queue_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
};

TEST(CheckpointWatch, OpensNoneOfThemUntilTheirFolderChanges) {
  const test::TempDir run;
  const auto folder = checkpoints_in(run.path());
  const auto save = [&](std::int64_t step) {  // as a run does: under another name, and renamed
    fs::create_directories(folder / "writing");
    CheckpointManifest::write(folder / "writing", {}, {}, {});
    fs::rename(folder / "writing", folder / step_name(step));
    return folder / step_name(step);
  };
  const Opened opened(save(2));
  CheckpointWatch watch(
      alone(), run.path(), /*patience_seconds=*/1,
      [](const CheckpointName& name, const CheckpointManifest&) { return name.step != 4; },
      /*look_every_seconds=*/0.1);
  EXPECT_EQ(test::error_of([&] { (void)watch.next(); }).exit(), Exit::usage) << "its patience ends";
  // MANIFEST.json once, what tells it from another one with it and at two looks; not at the other eight.
  EXPECT_LE(opened.count(), 4u);
  const auto unscored = save(4);
  EXPECT_EQ(watch.next(), unscored);
}

// 640 x 411 pixels among them: their sides are the reference's, not what was painted.
TEST(Scorer, CropsTheReferenceToSquares) {
  const test::TempDir dir;
  for (const bool is_cropped : {false, true}) {
    auto image = read_image(golden("images/3.png"));
    if (is_cropped) image = crop_center(image, 411, 411);
    const auto folder = dir / (is_cropped ? "square" : "wide");
    fs::create_directory(folder);
    for (const char* name : {"0.png", "1.png"}) write_png(folder / name, image);
  }
  const auto fid_of = [&](const char* reference, EvaluateConfig::Crop crop) {
    EvaluateConfig config;
    config.metrics = {EvaluateConfig::Metric::fid};
    config.features = golden("plain.pt").string();
    config.reference = (dir / reference).string();
    config.reference_crop = crop;
    const auto scores = Scorer(alone(), config).score(2, {}, "scoring", [&](std::int64_t, std::int64_t) {
      return std::vector{read_image(dir / "square/0.png"), read_image(dir / "square/1.png")};
    });
    EXPECT_EQ(scores.reference_pictures, 2);
    return *scores.fid;
  };
  EXPECT_NEAR(fid_of("wide", EvaluateConfig::Crop::center), 0, 1e-9);
  EXPECT_NEAR(fid_of("square", EvaluateConfig::Crop::center), 0, 1e-9);
  EXPECT_GT(fid_of("wide", EvaluateConfig::Crop::none), 1e-9);
}

// What the letters of a report stand for.
TEST(Protocol, HoldsWhatTheSettingsComeTo) {
  EvaluateRoot root;
  root.evaluate.metrics = {EvaluateConfig::Metric::kid};
  root.model.dtype = "auto";
  Painting painting{.sampler = "PNDMScheduler", .height = 512, .width = 384, .dtype = "bfloat16"};
  painting.tokenizer.mode = TokenizerConfig::Mode::open_clip;
  const nlohmann::ordered_json contents = {{"reference", "real (2 images, 8 bytes)"}};
  const auto of = [&](const ScoredModel& model) { return protocol_of(root, contents, 7, model); };
  const auto protocol = of({.painting = painting});
  EXPECT_EQ(protocol.at("reference"), "real (2 images, 8 bytes)");
  EXPECT_EQ(protocol.at("sampler"), "PNDMScheduler");
  EXPECT_EQ(protocol.at("size"), (nlohmann::ordered_json{512, 384}));
  EXPECT_EQ(protocol.at("dtype"), "bfloat16");
  EXPECT_EQ(protocol.at("tokenizer"), (nlohmann::ordered_json{{"mode", "open_clip"}}));
  EXPECT_EQ(protocol.at("count"), 7);
  EXPECT_FALSE(protocol.contains("loss"));
  const auto of_images = of({});
  EXPECT_EQ(of_images.at("count"), 7);
  EXPECT_EQ(of_images.at("seed"), 0) << "of KID's subsets";
  EXPECT_FALSE(of_images.contains("sampler"));
}

TEST(Protocol, OfALossIsTheRunsObjectiveAndSet) {
  TrainConfig trained;
  trained.data.validation.emplace().path = {"held-out"};
  const auto folder = SchedulerConfig::stable_diffusion(Prediction::epsilon);
  const auto before = loss_protocol(trained, folder, "float32");
  EXPECT_EQ(before.at("samples"), 8 * 2048);
  EXPECT_EQ(before.at("prediction"), "epsilon");
  EXPECT_TRUE(before.at("data").contains("path"));
  auto other = trained;
  other.objective.snr_gamma = 5;
  EXPECT_NE(loss_protocol(other, folder, "float32"), before);
  other = trained;
  other.data.validation->path = {"others"};
  EXPECT_NE(loss_protocol(other, folder, "float32"), before);
  other = trained;
  other.optim.lr = 1;
  EXPECT_EQ(loss_protocol(other, folder, "float32"), before);
  EXPECT_NE(loss_protocol(trained, folder, "bfloat16"), before);
}

TEST(Protocol, OfALossNamesWhatMakesOtherPixelsOrTokens) {
  TrainConfig trained;
  trained.data.validation.emplace().path = {"held-out"};
  const auto folder = SchedulerConfig::stable_diffusion(Prediction::epsilon);
  const auto before = loss_protocol(trained, folder, "float32");
  for (const char* name : {"transform", "images", "tokenizer"})
    EXPECT_FALSE(before.contains(name)) << "lines of runs that chose nothing stay as they were";
  auto other = trained;
  other.transform.resolution = 512;
  EXPECT_FALSE(loss_protocol(other, folder, "float32").contains("transform")) << "has a place of its own";
  other.transform.crop = TransformConfig::Crop::random;
  other.data.images.decode = ImageConfig::Decode::fast;
  other.tokenizer.mode = TokenizerConfig::Mode::open_clip;
  const auto protocol = loss_protocol(other, folder, "float32");
  EXPECT_EQ(protocol.at("transform"), (nlohmann::ordered_json{{"crop", "random"}}));
  EXPECT_EQ(protocol.at("images"), (nlohmann::ordered_json{{"decode", "fast"}}));
  EXPECT_EQ(protocol.at("tokenizer"), (nlohmann::ordered_json{{"mode", "open_clip"}}));
}

TEST(Protocol, OfALossTellsTheScheduleThatTheFolderMakes) {
  TrainConfig trained;
  trained.data.validation.emplace().path = {"held-out"};
  trained.objective.prediction = Prediction::v_prediction;
  const auto folder = SchedulerConfig::stable_diffusion(Prediction::v_prediction);
  const auto is_zero = [&](const SchedulerConfig& of_folder) {
    return loss_protocol(trained, of_folder, "float32").at("zero_terminal_snr").get<bool>();
  };
  EXPECT_FALSE(is_zero(folder));
  EXPECT_TRUE(is_zero(folder.with_keys({{"rescale_betas_zero_snr", true}})));
  trained.objective.zero_terminal_snr = true;
  EXPECT_TRUE(is_zero(folder));
}

TEST(FeaturesFile, IsTriedWithoutALeftover) {
  const test::TempDir dir;
  const auto refused = [](const fs::path& file) {
    const auto error = test::error_of([&] { check_features_file(file); });
    EXPECT_EQ(std::string(error.what()).find("evaluate.features_out: "), 0) << error.what();
    return error.exit();
  };
  EXPECT_EQ(refused(dir / "nowhere/features.safetensors"), Exit::io);
  EXPECT_EQ(refused(dir.path()), Exit::usage);
  check_features_file(dir / "features.safetensors");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

// Whoever published statistics has cropped already, and the preset's user has chosen nothing.
TEST(Scorer, WarnsOfACropThatSomebodyChose) {
  const test::TempDir dir;
  const auto file = dir / "reference.safetensors";
  write_tensors(file, {{"features", torch::rand({4, 10})}});
  EvaluateConfig config;
  config.metrics = {EvaluateConfig::Metric::fid};
  config.features = golden("plain.pt").string();
  config.reference = file.string();
  config.reference_crop = EvaluateConfig::Crop::center;
  for (const bool is_preset : {false, true}) {
    if (is_preset) config.preset = EvaluateConfig::Preset::mosaic;
    testing::internal::CaptureStderr();
    (void)Scorer(alone(), config);
    const auto said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.find("evaluate.reference_crop=center is for a folder") == said.npos, is_preset) << said;
  }
}

// Not after hours of reading a reference.
TEST(Evaluation, CaptionsAndContentsAreLookedAtFirst) {
  const test::TempDir dir;
  EvaluateRoot root;
  root.evaluate.metrics = {EvaluateConfig::Metric::fid, EvaluateConfig::Metric::clip};
  root.evaluate.features = dir.write("features.pt", "no network").string();
  root.evaluate.clip = golden("clip").string();
  root.evaluate.prompts = dir.write("captions.txt", "one\ntwo\n").string();
  root.evaluate.reference = (dir / "nowhere").string();
  const EvaluateJob job{EvaluateJob::Source::images, golden("images"), dir / "out"};
  const auto complaint = [&] { return std::string(test::error_of([&] { Evaluation(alone(), root, job); }).what()); };
  EXPECT_EQ(complaint().find("evaluate.reference: "), 0) << complaint();
  root.evaluate.reference = golden("images").string();
  EXPECT_EQ(complaint().find("evaluate.prompts holds 2 captions for 6 pictures"), 0) << complaint();
  EXPECT_FALSE(fs::exists(job.out));
}

struct FeaturesOut : testing::Test {
  FeaturesOut() {
    root.evaluate.metrics = {};
    root.evaluate.features = golden("plain.pt").string();
    root.evaluate.features_out = (dir / "away/features.safetensors").string();
  }

  test::TempDir dir;
  EvaluateRoot root;
  EvaluateJob job{EvaluateJob::Source::images, golden("images"), dir / "out"};
};

TEST_F(FeaturesOut, ThatCannotBeWrittenAreFoundBeforeAnythingIsScored) {
  EXPECT_EQ(test::error_of([&] { Evaluation(alone(), root, job); }).exit(), Exit::io);
}

TEST_F(FeaturesOut, MayLieInTheFolderOfTheScores) {
  root.evaluate.features_out = (job.out / "features.safetensors").string();
  Evaluation(alone(), root, job).score_images();
  EXPECT_EQ(read_tensors(*root.evaluate.features_out).at("features").size(0), 6);
}

TEST_F(FeaturesOut, ThatCannotBeWrittenInTheEndCostNoScores) {
  fs::create_directory(dir / "away");
  Evaluation evaluation(alone(), root, job);
  fs::remove(dir / "away");
  EXPECT_EQ(test::error_of([&] { evaluation.score_images(); }).exit(), Exit::io);
  const auto line = nlohmann::json::parse(read_file(job.out / "evaluation.jsonl"));
  EXPECT_EQ(line.at("images"), 6);
  EXPECT_EQ(line.at("protocol").at("count"), 6);
}

}  // namespace
}  // namespace millrace
