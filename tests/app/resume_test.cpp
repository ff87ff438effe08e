#include "run/resume.h"

#include <gmock/gmock.h>

#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/checkpoint/manifest.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"
#include "own_log.h"
#include "run/used_up.h"
#include "test_data.h"

// What of a checkpoint a start takes, and refuses, without a run.
namespace millrace {
namespace {

using testing::HasSubstr;

CheckpointReader golden() {
  return CheckpointReader::open(test::data_dir() / "checkpoints/format-2");
}

// A checkpoint of a run of this identity.
CheckpointReader checkpoint_of(const fs::path& folder, const nlohmann::json& identity) {
  auto manifest = golden().manifest();
  manifest.update(identity);
  fs::create_directories(folder.parent_path());
  fs::copy(golden().path(), folder);
  CheckpointManifest::write(folder, manifest, golden().files(), golden().tensors());
  return CheckpointReader::open(folder);
}

// Trained on this list, or archive.
RunIdentity identity_on(const fs::path& path, const std::string& type = "csv") {
  DataPlan data;
  data.manifest.archives.push_back({.path = path.string(), .name = "a", .bytes = 100, .rows = {}, .limit = {}});
  const auto config = "run: {seed: 420}\ndata: {train: {type: " + type + "}}\n";
  return make_identity(RunIdentity::Kind::unet, config, data, {}, "pipeline");
}

TEST(RunIdentity, ComesBackFromAManifestAsItWasWritten) {
  const test::TempDir folder;
  for (const auto& identity : {identity_on(folder / "a.csv"), identity_on(folder / "a.tar", "webdataset")}) {
    const auto json = identity.to_json();
    EXPECT_EQ(RunIdentity::from_manifest(json).to_json(), json);
    EXPECT_EQ(RunIdentity::from_manifest(json).config.run.seed, 420u);
  }
}

// From another folder, or with another value of a variable in the path.
TEST(Resume, WordsThatLeadElsewhereAreTold) {
  const test::TempDir folder;
  fs::create_directory(folder / "there");
  fs::create_directory_symlink("there", folder / "link");
  const auto list = folder / "there/a.csv";
  const auto checkpoint = checkpoint_of(folder / "step", identity_on(list).to_json());
  const Manifest none;
  const auto check = [&](const RunIdentity& identity, const std::vector<config::Change>& changes = {}) {
    check_resume(checkpoint, changes, identity, none, /*allow_changes=*/false);
  };
  EXPECT_NO_THROW(check(identity_on(list)));
  EXPECT_NO_THROW(check(identity_on(folder / "link/a.csv"))) << "the same list";
  EXPECT_NO_THROW(check(identity_on(list), {{"data.train.path", "there/a.csv", list.string()}})) << "spelling alone";
  const auto moved = identity_on(folder / "a.csv");
  {
    const test::OwnLog log;
    EXPECT_NO_THROW(check(moved));
    EXPECT_EQ(log.count("leads elsewhere"), 1);
  }
  const auto before = RunIdentity::from_manifest(checkpoint.manifest());
  EXPECT_EQ(kept_cursors(before, moved), KeptCursors::all) << "the run goes on at the same sample";
}

// Its archives are those of the images that it was made of.
TEST(Resume, ACacheIsWhereItLiesAndNotWhereItsImagesLay) {
  const auto cache_at = [](const std::string& path, const std::string& images) {
    DataPlan data;
    data.manifest.archives.push_back({.path = images, .name = "a", .bytes = 100, .rows = {}, .limit = {}});
    const auto config = fmt::format("data: {{train: {{type: latents, path: {}}}}}\n", path);
    return make_identity(RunIdentity::Kind::unet, config, data, {}, "pipeline").paths.value().resolved;
  };
  EXPECT_NE(cache_at("/one/cache", "/images/a.tar"), cache_at("/other/cache", "/images/a.tar"));
  EXPECT_EQ(cache_at("/one/cache", "/images/a.tar"), cache_at("/one/cache", "/elsewhere/a.tar"));
}

TEST(Resume, WhereDataLayIsNotComparedWhereNobodyKnows) {
  const test::TempDir folder;
  auto before = identity_on(folder / "there/a.csv").to_json();
  before.erase("paths");
  const auto checkpoint = checkpoint_of(folder / "step", before);
  EXPECT_NO_THROW(check_resume(checkpoint, {}, identity_on(folder / "a.csv"), {}, /*allow_changes=*/false));
  // Names and sizes tell whether tars are the same.
  EXPECT_FALSE(identity_on(folder / "a.tar", "webdataset").paths);
  EXPECT_FALSE(identity_on(folder / "synthetic-000000", "synthetic").paths);
}

TEST(Resume, AnotherAutoencoderIsToldByTheKeyThatThereIs) {
  const test::TempDir folder;
  auto vae = read_json(test::data_dir() / "folder/pipeline/vae/config.json");
  const auto identity_of = [&] {
    return make_identity(RunIdentity::Kind::vae, "run: {seed: 420}\n", {}, vae, "pipeline");
  };
  const auto checkpoint = checkpoint_of(folder / "step", identity_of().to_json());
  vae["latent_channels"] = 8;
  const auto error = test::error_of([&] { check_resume(checkpoint, {}, identity_of(), {}, /*allow_changes=*/true); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_THAT(error.hint(), testing::StartsWith("set model.pipeline back, or choose another run.dir"));
}

// Its disk may not be mounted: a start at step 0 would throw the history away.
TEST(Resume, ARunThatHadCheckpointsDoesNotBeginAnewInSilence) {
  const test::TempDir run;
  const auto start = [&](const std::string& resume) { return find_start(Group(), run.path(), resume, {0}); };
  const auto refusal = [&] { return test::error_of([&] { start("auto"); }); };
  EXPECT_FALSE(start("auto"));
  const auto none = R"({"state": "running", "step": 0, "checkpoint": null})";
  const auto seven = R"({"state": "done", "step": 7, "checkpoint": "/disk/run/checkpoints/step-00000007"})";
  run.write(run_file::done, none);
  EXPECT_FALSE(start("auto"));
  run.write(run_file::done, seven);
  EXPECT_EQ(refusal().exit(), Exit::io);
  EXPECT_THAT(refusal().what(), HasSubstr("/disk/run/checkpoints/step-00000007 was the newest checkpoint"));
  EXPECT_THAT(refusal().hint(), HasSubstr("mounted"));
  EXPECT_FALSE(start("never")) << "who says so";
  run.write(run_file::state, none);
  EXPECT_FALSE(start("auto")) << "and that start was killed before its first save";
  run.write(run_file::state, seven);
  EXPECT_EQ(refusal().exit(), Exit::io);
  run.write(run_file::done, none);
  run.write(run_file::state, "{\"state");  // of a crash
  EXPECT_FALSE(start("auto"));
  run.write(run_file::state, seven);
  fs::create_directories(run.path() / "checkpoints/step-00000007.damaged");
  EXPECT_FALSE(start("auto")) << "there is nothing to go on from";
}

TEST(UsedUp, ADamagedFileIsNoMistakeOfTheProgram) {
  const test::TempDir run;
  const auto file = run / run_file::rollback;
  const auto read = [&] {
    Start start{.checkpoint = golden()};
    read_used_up(Group(), run.path(), start);
    return start.state.used_up;
  };
  const std::vector<UsedUpSteps> steps = {{{4, 6}, 3}};
  remember_used_up(run.path(), golden(), steps);
  EXPECT_EQ(read(), steps);
  const auto written = read_json_object(file);
  for (const auto& [key, text] : std::vector<std::pair<const char*, const char*>>{
           {"digest", "7"}, {"used_up", "\"many\""}, {"used_up", R"([{"first": 4}])"}}) {
    auto damaged = written;
    damaged[key] = nlohmann::json::parse(text);
    run.write(run_file::rollback, damaged.dump());
    const auto error = test::error_of(read);
    EXPECT_EQ(error.exit(), Exit::io) << damaged;
    EXPECT_THAT(error.what(), HasSubstr(file.string())) << damaged;
  }
}

}  // namespace
}  // namespace millrace
