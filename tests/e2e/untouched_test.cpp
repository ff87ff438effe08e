// Dry runs and refused starts write nothing: no byte, no name and no date changes in the whole workshop, logs aside.
#include <gmock/gmock.h>

#include <map>
#include <optional>

#include "download/server.h"
#include "e2e/program.h"
#include "millrace/core/files.h"

namespace millrace::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Entry {
  std::string digest;  // of a file
  fs::file_time_type written;
  bool operator==(const Entry&) const = default;
};
using Snapshot = std::map<std::string, Entry>;

Snapshot snapshot() {
  Snapshot taken;
  for (const auto& entry : fs::recursive_directory_iterator(workshop())) {
    const auto name = fs::relative(entry.path(), workshop()).string();
    if (name.find("/log/") != name.npos) continue;
    taken[name] = {entry.is_directory() ? "" : hash_file(entry.path()).hex(), entry.last_write_time()};
  }
  return taken;
}

// What is new, gone, or other.
std::vector<std::string> differences(const Snapshot& before, const Snapshot& after) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : after) {
    const auto old = before.find(name);
    if (old == before.end()) {
      names.push_back("new: " + name);
    } else if (!(old->second == entry)) {
      names.push_back((old->second.digest == entry.digest ? "written again: " : "other: ") + name);
    }
  }
  for (const auto& [name, entry] : before)
    if (!after.contains(name)) names.push_back("gone: " + name);
  return names;
}

// That of the last expect_untouched(), which the next one starts from; forgotten where anything has changed since.
std::optional<Snapshot>& last_snapshot() {
  static std::optional<Snapshot> last;
  return last;
}

void forget_snapshot() {
  last_snapshot().reset();
}

void expect_untouched(const std::string& command, int exit_code, const std::string& said) {
  const auto before = last_snapshot() ? *last_snapshot() : snapshot();
  const auto outcome = shell("timeout 600 env " + command);
  EXPECT_EQ(outcome.exit_code, exit_code) << command << "\n" << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(said)) << command;
  last_snapshot() = snapshot();
  EXPECT_THAT(differences(before, *last_snapshot()), IsEmpty()) << command << "\n" << outcome.output;
}

void expect_success(const std::string& command) {
  forget_snapshot();
  const auto outcome = shell(command);
  ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.output;
}

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

// A pipeline without the VAE's weights, which only loading finds out.
const std::string& hollow_pipeline() {
  static const std::string folder = [] {
    forget_snapshot();
    fs::copy(workshop() / "tiny", workshop() / "hollow", fs::copy_options::recursive);
    fs::remove(workshop() / "hollow/vae/diffusion_pytorch_model.safetensors");
    return at("hollow");
  }();
  return folder;
}

struct Start {
  std::string settings;
  int exit_code;
  std::string said;
};

// What each stage of a start may find: settings, data, the run's folder and what it was, weights.
std::vector<Start> starts_of_each_stage() {
  return {
      {"--dry-run", 0, "nothing was written"},
      {"--dry-run 'duration=8 steps'", 0, "continue with step 5"},
      {"", 0, "nothing to train"},
      {"'duration=8 steps' optim.lrr=1", 2, "optim.lrr"},
      {"'duration=8 steps' run.seed=1", 2, "run.seed: 420 -> 1"},
      {"'duration=8 steps' checkpoint.resume=" + at("gone"), 74, "gone"},
      {"'duration=8 steps' 'data.train.path=" + at("shapes") + "/{00003..00004}.tar'", 74, "00004.tar"},
      {"'duration=8 steps' encode.cache=null model.pipeline=" + hollow_pipeline(), 74, "hollow/vae"},
  };
}

// What else the same stages find.
std::vector<Start> more_starts() {
  return {
      {"'duration=2 steps'", 0, "nothing to train"},
      {"'duration=8 steps' batch.global=16", 2, "batch.global: 8 -> 16"},
      {"'duration=8 steps' transform.flip=0.5 encode.cache=null", 2, "transform.flip"},
      {"'duration=8 steps' 'data.train.path=" + at("shapes") + "/{00000..00002}.tar'", 2, "00003"},
      {"'duration=8 steps' checkpoint.resume=never", 2, "checkpoint.resume=never"},
      {"'duration=8 steps' model.pipeline=" + at("nowhere"), 74, "nowhere"},
      {"'duration=8 steps' run.device=cuda", 2, "cuda"},
      {"'duration=8 steps' roles.producers=9", 2, "roles.producers"},
      {"'duration=8 steps' 'guard.hang_timeout=3 steps'", 2, "guard.hang_timeout"},
      {"'duration=8 steps' data.validation.path=" + at("no.tar"), 74, "no.tar"},
      {"'duration=8 steps' data.validation.type=class data.validation.idx_to_prompt=" + at("no.json") +
           " data.validation.path=" + at("shapes"),
       74, "no.json"},
  };
}

TEST(Untouched, ATrainedRunOnOneRank) {
  const auto command = train("one", "'duration=4 steps' encode.cache=" + at("cache") + " ");
  expect_success(command);
  for (const auto& starts : {starts_of_each_stage(), more_starts()})
    for (const auto& start : starts) expect_untouched(command + start.settings, start.exit_code, start.said);
}

TEST(Untouched, ATrainedRunOnThreeRanks) {
  const auto command =
      mpirun(3) + train("three", "'duration=4 steps' encode.cache=" + at("cache") +
                                     " roles.producers=1 data.validation.path=" + at("shapes/00003.tar") +
                                     " validation.batches=1 ");
  expect_success(command);
  for (const auto& start : starts_of_each_stage())
    expect_untouched(command + start.settings, start.exit_code, start.said);
}

TEST(Untouched, ARunWhoseCheckpointsAreAllDamaged) {
  const auto command = train("damaged", "'duration=4 steps' ");
  expect_success(command);
  for (const auto& entry : fs::directory_iterator(workshop() / "damaged/checkpoints"))
    fs::remove(entry.path() / "MANIFEST.json");
  expect_untouched(command + "'duration=8 steps'", 74, "none of the 1 checkpoints");
  expect_untouched(command + "--dry-run", 74, "none of the 1 checkpoints");
}

// DONE tells phase 2 that the weights of phase 1 are there. A longer phase 1 takes it back with its first checkpoint.
TEST(Untouched, DoneStaysUntilTheFirstCheckpointOfALaterStart) {
  const auto run = workshop() / "longer";
  expect_success(train("longer", "'duration=4 steps'"));
  const auto before = snapshot();
  const auto killed =
      shell(train("longer", "'duration=1000 steps' 'checkpoint.every=1000 steps'") +
            " & pid=$!; for i in $(seq 3000); do grep -q '\"step\":6' " + (run / "metrics.jsonl").string() +
            " && break; sleep 0.01; done; kill -KILL $pid; wait $pid");
  ASSERT_EQ(killed.exit_code, 128 + 9) << killed.output;
  const auto after = snapshot();
  EXPECT_EQ(before.at("longer/DONE"), after.at("longer/DONE"));
  EXPECT_EQ(nlohmann::json::parse(read(run / "STATE"))["state"], "running");
  expect_success(train("longer", "'duration=8 steps'"));
  EXPECT_EQ(nlohmann::json::parse(read(run / "DONE"))["step"], 8);
}

TEST(Untouched, AFolderThatIsNotThereIsNotMade) {
  for (const std::string& launcher : {std::string(), mpirun(2)}) {
    const auto command = launcher + train("new", "'duration=4 steps' encode.cache=" + at("new-cache") + " ");
    expect_untouched(command + "--dry-run", 0, "would be made");
    expect_untouched(command + "data.train.path=" + at("no.tar"), 74, "no.tar");
    expect_untouched(command + "model.pipeline=" + hollow_pipeline(), 74, "hollow");
    expect_untouched(command + "batch.micro=3", 2, "batch.micro");
    expect_untouched(command + "run.device=cuda", 2, "cuda");
  }
}

TEST(Untouched, APreprocessedCache) {
  for (const std::string& launcher : {std::string(), mpirun(3)}) {
    const auto run = launcher.empty() ? "filled" : "filled-by-three";
    const auto command = launcher + millrace + " preprocess run.dir=" + at(run) +
                         " run.device=cpu model.pipeline=" + at("tiny") + " data.train.path=" + at("shapes") +
                         " transform.resolution=32 encode.batch_size=8 encode.cache=" + at(run) + "-cache ";
    expect_success(command);
    expect_untouched(command + "--dry-run", 0, "nothing was written");
    expect_untouched(command + "--dry-run data.train.limit=8", 0, " for 8 rows (encode.text_on=trainer: ");
    expect_untouched(command + "encode.batchsize=4", 2, "encode.batchsize");
    expect_untouched(command + "transform.interpolation=bicubic", 2, "interpolation");
    expect_untouched(command + "data.train.path=" + at("no.tar"), 74, "no.tar");
    expect_untouched(command + "run.device=cuda", 2, "cuda");
    expect_untouched(command + "encode.cache=" + at("other-cache") + " model.pipeline=" + hollow_pipeline(), 74,
                     "hollow");
    expect_untouched(command + "--dry-run run.dir=" + at("new-run") + " encode.cache=" + at("new-cache"), 0,
                     "would be made");
  }
}

TEST(Untouched, ATrainedAutoencoder) {
  for (const std::string& launcher : {std::string(), mpirun(2)}) {
    const auto command = launcher + millrace +
                         " train-autoencoder run.dir=" + at(launcher.empty() ? "vae" : "vae-two") +
                         " run.device=cpu model.pipeline=" + at("tiny") + " data.train.path=" + at("shapes") +
                         " transform.resolution=32 batch.global=8 batch.micro=2 'duration=2 steps' ";
    expect_success(command);
    expect_untouched(command + "--dry-run", 0, "nothing was written");
    expect_untouched(command, 0, "nothing to train");
    expect_untouched(command + "--dry-run 'duration=4 steps'", 0, "from step 2");
    expect_untouched(command + "'duration=4 steps' optim.lrr=1", 2, "optim.lrr");
    expect_untouched(command + "'duration=4 steps' run.seed=1", 2, "run.seed");
    expect_untouched(command + "'duration=4 steps' checkpoint.resume=never", 2, "checkpoint.resume=never");
    expect_untouched(command + "'duration=4 steps' data.train.path=" + at("no.tar"), 74, "no.tar");
    expect_untouched(
        command + "model.init=pretrained run.dir=" + at("new-vae") + " model.pipeline=" + hollow_pipeline(), 74,
        "hollow");
  }
}

TEST(Untouched, DownloadedArchives) {
  const auto image = read(MILLRACE_TEST_DATA "/transform/gray.jpg");
  ASSERT_FALSE(image.empty());
  test::TestServer server([&](const std::string& path, test::Client& client) {
    if (path == "/robots.txt") return client.answer(404, "");
    client.answer(200, image);
  });
  std::ofstream(workshop() / "list.csv") << "url,caption\n" << server.url("/a") << ",x\n" << server.url("/b") << ",y\n";
  std::ofstream(workshop() / "other.csv") << "link,caption\n" << server.url("/c") << ",z\n";
  for (const std::string& launcher : {std::string(), mpirun(2)}) {
    const auto command = launcher + millrace + " download download.urls=" + at("list.csv") +
                         " download.out=" + at(launcher.empty() ? "images" : "images-of-two") +
                         " download.columns.url=url download.columns.caption=caption "
                         "download.allow_networks=127.0.0.1/32 ";
    expect_success(command);
    expect_untouched(command + "--dry-run", 0, "nothing was written");
    expect_untouched(command + "--dry-run download.out=" + at("new-images"), 0, "nothing was written");
    expect_untouched(command + "download.outt=x", 2, "download.outt");
    expect_untouched(command + "download.rows_per_file=3", 2, "rows_per_file");
    expect_untouched(command + "--dry-run download.rows_per_file=3", 2, "rows_per_file");
    expect_untouched(command + "download.urls=" + at("no.csv") + " download.out=" + at("new-images"), 74, "no.csv");
    expect_untouched(command + "download.urls=" + at("other.csv") + " download.out=" + at("new-images"), 2,
                     "no column 'url'");
  }
}

TEST(Untouched, DryRunsOfCommandsThatMakeFiles) {
  expect_untouched(millrace + " init --dry-run --preset tiny --out " + at("new-tiny"), 0, "nothing was written");
  expect_untouched(millrace + " generate --dry-run --pipeline " + at("tiny") + " --prompt x --out " + at("pictures"), 0,
                   "nothing was written");
  expect_success(train("exported", "'duration=4 steps'"));
  expect_untouched(millrace + " export --dry-run --run " + at("exported") + " --out " + at("exported-pipeline"), 0,
                   "nothing was written");
}

}  // namespace
}  // namespace millrace::e2e
