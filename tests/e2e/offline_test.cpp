// The latent cache through the real binary: online, offline and mixed training are the same, tensor for tensor.
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <map>
#include <set>

#include "download/server.h"
#include "e2e/program.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

constexpr const char* steps = "'duration=6 steps' 'record.steps=[1,4,6]' ";

// Everything runs on one core, so that every rank has one thread: the last bits of an encoding depend on how many
// threads make it.
[[maybe_unused]] const bool on_one_core = [] {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  CPU_ZERO(&allowed);
  CPU_SET(core, &allowed);
  return sched_setaffinity(0, sizeof allowed, &allowed) == 0;
}();

std::string cache_path(const std::string& name) {
  return (workshop() / name).string();
}

// The settings of train(), as far as they concern encodings.
std::string preprocess(const std::string& run, const std::string& cache, const std::string& settings = "") {
  const auto& w = workshop();
  return millrace + " preprocess run.dir=" + (w / run).string() +
         " run.device=cpu model.pipeline=" + (w / "tiny").string() + " data.train.path=" + (w / "shapes").string() +
         " transform.resolution=32 encode.batch_size=8 encode.cache=" + cache_path(cache) + " " + settings;
}

// The same in the program made for faults.
std::string with_fault(const std::string& fault, const std::string& command) {
  return "env 'MILLRACE_INJECT=" + fault + "' " + MILLRACE_INJECT_BINARY + command.substr(millrace.size());
}

Outcome expect_success(const std::string& command) {
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.output;
  return outcome;
}

const std::string& online() {
  static const std::string run = [] {
    expect_success(train("online", steps));
    return std::string("online");
  }();
  return run;
}

// A cache of all 96 rows, made by three ranks.
const std::string& complete_cache() {
  static const std::string cache = [] {
    expect_success(mpirun(3) + preprocess("filled", "complete", "encode.rows_per_file=10"));
    return std::string("complete");
  }();
  return cache;
}

void expect_same(const std::string& wanted, const std::string& run) {
  const auto a = workshop() / wanted, b = workshop() / run;
  EXPECT_EQ(read(a / "ids.jsonl"), read(b / "ids.jsonl"));
  for (const char* step : {"step-00000001", "step-00000004", "step-00000006"}) {
    const auto name = std::string("records/") + step + ".safetensors";
    const auto left = read_weights(a / name), right = read_weights(b / name);
    ASSERT_TRUE(left.contains("latents") && left.contains("text"));
    EXPECT_EQ(left, right) << run << " " << step;
  }
}

void expect_same_as_online(const std::string& run) {
  expect_same(online(), run);
}

std::set<std::string> json_files(const std::string& cache) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(cache_path(cache) + "/rows"))
    if (entry.path().extension() == ".json") names.insert(entry.path().filename().string());
  return names;
}

nlohmann::json inspect(const std::string& cache) {
  return nlohmann::json::parse(shell(millrace + " inspect --json " + cache_path(cache)).output);
}

TEST(Offline, PreprocessFillsACacheThatInspectFindsSound) {
  const auto report = inspect(complete_cache());
  EXPECT_EQ(report["kind"], "cache");
  EXPECT_EQ(report["complete"], true);
  EXPECT_EQ(report["rows"], 96);
  EXPECT_EQ(report["accepted"], 96);
  EXPECT_TRUE(report["problems"].empty()) << report;
  const auto ledger = nlohmann::json::parse(read(workshop() / "filled/ledger.json"));
  EXPECT_EQ(ledger["rows"], 96);
  EXPECT_EQ(ledger["archives"].size(), 4u);
}

TEST(Offline, WithTheFilledCacheAsOnline) {
  expect_success(train("with-cache", steps + ("encode.cache=" + cache_path(complete_cache()))));
  expect_same_as_online("with-cache");
}

TEST(Offline, FromTheCacheAloneAsOnline) {
  expect_success(train("alone", steps + ("data.train.type=latents data.train.path=" + cache_path(complete_cache()))));
  expect_same_as_online("alone");
  expect_success(mpirun(3) +
                 train("alone-on-three", steps + ("roles.producers=1 data.train.type=latents data.train.path=" +
                                                  cache_path(complete_cache()))));
  EXPECT_EQ(read(workshop() / "alone-on-three/ids.jsonl"), read(workshop() / online() / "ids.jsonl"));
}

TEST(Offline, AHalfFilledCacheAsOnlineAndFullerAfterwards) {
  expect_success(preprocess("half-filled", "half", "data.train.limit=40 encode.rows_per_file=16"));
  EXPECT_EQ(inspect("half")["rows"], 40);
  expect_success(train("mixed", steps + ("encode.cache=" + cache_path("half"))));
  expect_same_as_online("mixed");
  EXPECT_GE(inspect("half")["rows"], 64);  // what training reads ahead of its six steps, too
}

TEST(Offline, AnEmptyCacheFillsWhileTraining) {
  expect_success(train("filling", steps + ("encode.cache=" + cache_path("filling-cache"))));
  expect_same_as_online("filling");
  expect_success(train("filled-again", steps + ("encode.cache=" + cache_path("filling-cache"))));
  expect_same_as_online("filled-again");
}

// Stripes go round one after the other, so that every archive in work is left before it is done. An archive has two
// files where its rows were encoded before and after the first stripe began its second epoch.
TEST(Offline, ManyStripesAtOnceMakeWholeFiles) {
  expect_success(shapes + " make --out " + cache_path("many") + " --count 400 --per-archive 4");
  expect_success(
      train("many-stripes", "data.train.path=" + cache_path("many") + " data.stripes=100 batch.global=100 " +
                                "batch.micro=50 'duration=4 steps' encode.cache=" + cache_path("many-cache")));
  std::map<std::string, int> files;
  for (const auto& entry : fs::recursive_directory_iterator(cache_path("many-cache") + "/rows"))
    if (entry.path().extension() == ".json") ++files[entry.path().parent_path().string()];
  EXPECT_EQ(files.size(), 100u);
  for (const auto& [archive, count] : files) EXPECT_LE(count, 2) << archive;
}

// What a complete cache holds is decided; a setting that says otherwise is no setting to pass over.
TEST(Offline, ACacheThatWasMadeForOtherSettingsIsRefused) {
  const auto alone = " data.train.type=latents data.train.path=" + cache_path(complete_cache());
  const auto expect_refused = [&](const std::string& settings, const std::string& word) {
    const auto refused = shell(train("decided", settings + alone));
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_NE(refused.output.find(word), std::string::npos) << refused.output;
  };
  expect_refused("transform.resolution=64", "holds latents of 32 x 32 pixels");
  expect_refused("'data.train.filters.aesthetic=>=6'", "data.train.filters");
  expect_refused("data.train.columns.caption=text", "data.train.columns.caption");
  const auto filters = "'data.train.filters.width=>=1' ";
  expect_success(preprocess("decided-filled", "decided-cache", filters));
  expect_success(train("decided-alike", filters + ("'duration=1 steps' data.train.type=latents data.train.path=" +
                                                   cache_path("decided-cache"))));
}

TEST(Offline, ADamagedFileIsEncodedAnewAndAnErrorWithoutImages) {
  const auto cache = workshop() / "damaged-cache";
  fs::copy(cache_path(complete_cache()), cache, fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(cache / "rows")) {
    if (entry.path().extension() != ".h5") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(fs::file_size(entry.path()) / 2)).put('\x55').put('\xAA');
  }
  EXPECT_EQ(shell(millrace + " inspect " + cache.string()).exit_code, 74);
  const auto alone =
      shell(train("damaged-alone", steps + ("data.train.type=latents data.train.path=" + cache.string())));
  EXPECT_EQ(alone.exit_code, 74) << alone.output;
  EXPECT_NE(alone.output.find("digest"), std::string::npos) << alone.output;
  expect_success(train("damaged-mixed", steps + ("encode.cache=" + cache.string())));
  expect_same_as_online("damaged-mixed");
}

TEST(Offline, KilledPreprocessLosesAndDoublesNothing) {
  const auto command = preprocess("killed", "killed-cache", "encode.rows_per_file=4 encode.batch_size=4");
  const auto killed = shell(with_fault("kill@0:*:fsync=killed-cache/tmp/scratch.h5:4", command));
  ASSERT_NE(killed.exit_code, 0) << killed.output;
  const auto before = json_files("killed-cache");
  EXPECT_FALSE(before.empty());
  expect_success(mpirun(2) + command);
  const auto report = inspect("killed-cache");
  EXPECT_EQ(report["rows"], 96);
  EXPECT_EQ(report["complete"], true);
  EXPECT_TRUE(fs::is_empty(cache_path("killed-cache") + "/tmp"));
  const auto after = json_files("killed-cache");
  for (const auto& name : before) EXPECT_TRUE(after.contains(name)) << name;
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "killed/ledger.json"))["accepted"], 96);
  expect_success(preprocess("again", "killed-cache", "encode.batch_size=4"));  // nothing left to do
  EXPECT_EQ(json_files("killed-cache"), after);
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "again/ledger.json"))["rows"], 96);
}

TEST(Offline, ASignalKeepsWhatIsDone) {
  const auto command = preprocess("signalled", "signalled-cache", "encode.rows_per_file=2 encode.batch_size=1");
  const auto stopped = shell(with_fault("stop@0:*:fsync=signalled-cache/tmp/scratch.h5:2", command) +
                             " & pid=$!; for i in $(seq 15000); do grep -q 'State:.T' /proc/$pid/status && break; " +
                             "sleep 0.02; done; kill -USR1 $pid; kill -CONT $pid; wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "signalled/STATE"))["state"], "requeue");
  expect_success(command);
  EXPECT_EQ(inspect("signalled-cache")["rows"], 96);
}

TEST(Offline, WhoHasLostTheFolderWritesNothingMoreThere) {
  const auto command = preprocess("lost", "lost-cache", "encode.rows_per_file=2 encode.batch_size=1");
  const auto stopped = shell(with_fault("stop@0:*:fsync=lost-cache/tmp/scratch.h5:2", command) +
                             " & pid=$!; for i in $(seq 15000); do grep -q 'State:.T' /proc/$pid/status && break; " +
                             "sleep 0.02; done; cd " + cache_path("lost") +
                             "; sed 's/\"nonce\": \"/&of-another-/' LEASE > taken && mv taken LEASE; "
                             "echo of another > STATE; kill -USR1 $pid; kill -CONT $pid; wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_EQ(read(workshop() / "lost/STATE"), "of another\n");
  EXPECT_FALSE(fs::exists(workshop() / "lost/ledger.json"));
}

// For a shell: the process of a rank whose run.dir has this name.
std::string pid_of_rank(int rank, const std::string& run) {
  return "$(for p in /proc/[0-9]*; do grep -qzx OMPI_COMM_WORLD_RANK=" + std::to_string(rank) +
         " $p/environ 2> /dev/null && grep -qzx run.dir=" + cache_path(run) +
         " $p/cmdline 2> /dev/null && echo ${p#/proc/}; done)";
}

// Two ranks, each with an archive that stays open when all its samples have come.
std::string preprocess_of_open_archives(const std::string& run, const std::string& settings) {
  const auto archive = [](const char* name) {
    return "pipe:cat " + cache_path("shapes") + "/" + name + ".tar; sleep 100";
  };
  return mpirun(2) + preprocess(run, run + "-cache",
                                "data.allow_pipes=true 'data.train.path=[" + archive("00000") + "," + archive("00001") +
                                    "]' encode.batch_size=4 " + settings);
}

// Starts it and stops rank 1, in the middle of a command, once something is encoded.
std::string stop_rank_1_of(const std::string& run, const std::string& settings = "") {
  return preprocess_of_open_archives(run, settings) + " & pid=$!; for i in $(seq 3000); do grep -q 'encoded [1-9]' " +
         cache_path(run) + "/log/rank-00000.log && break; sleep 0.01; done; one=" + pid_of_rank(1, run) +
         "; kill -STOP $one; ";
}

TEST(Offline, ARankThatStandsStillIsNamed) {
  const auto ended = shell(stop_rank_1_of("stands", "guard.hang_timeout='10 s'") + "wait $pid");
  EXPECT_EQ(ended.exit_code, 76) << ended.output;
  EXPECT_NE(ended.output.find("rank 1 on"), std::string::npos) << ended.output;
  const auto state = nlohmann::json::parse(read(workshop() / "stands/STATE"));
  EXPECT_EQ(state["state"], "requeue");
  EXPECT_EQ(state["exit"], 76);
  const auto fault = workshop() / "stands/fault/rank-00001.json";
  EXPECT_EQ(nlohmann::json::parse(read(fault), nullptr, false)["phase"], "filling the cache") << read(fault);
  expect_success(preprocess("stands", "stands-cache"));
  EXPECT_FALSE(fs::exists(fault)) << "of an earlier start";
}

// The job may end before the slowest rank is heard of: one that waits for it publishes what it has.
TEST(Offline, ASignalKeepsWhatIsDoneWithoutTheOthers) {
  const auto stopped = shell(stop_rank_1_of("not-alone") + "sleep 2; kill -USR1 " + pid_of_rank(0, "not-alone") +
                             "; for i in $(seq 2000); do [ \"$(find " + cache_path("not-alone-cache") +
                             "/rows -name '*.json' | wc -l)\" -ge 1 ] && echo published && break; sleep 0.01; done; "
                             "kill -CONT $one; wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_NE(stopped.output.find("published"), std::string::npos) << stopped.output;
  EXPECT_GE(inspect("not-alone-cache")["rows"], 4);
}

// A folder that was done before must not say so while more is made.
TEST(Offline, StateSaysThatItRuns) {
  expect_success(preprocess("states", "states-cache", "data.train.limit=8"));
  const auto state = workshop() / "states/STATE";
  EXPECT_EQ(nlohmann::json::parse(read(state)).at("state"), "done");
  EXPECT_NE(read(workshop() / "states/config.yaml").find("states-cache"), std::string::npos);
  const auto killed = shell(with_fault("kill@0:*:fsync=states-cache/tmp/scratch.h5",
                                       preprocess("states", "states-cache", "encode.batch_size=1")));
  EXPECT_NE(killed.exit_code, 0) << killed.output;
  EXPECT_EQ(nlohmann::json::parse(read(state)).at("state"), "running");
  expect_success(preprocess("states", "states-cache"));
  EXPECT_EQ(nlohmann::json::parse(read(state)).at("state"), "done");
}

// Though nothing comes that it could encode, whether filters drop it or the source is silent.
TEST(Offline, ASignalIsObeyedWhileNoSampleComes) {
  const auto begun = workshop() / "silent-begun";
  const auto command = preprocess(
      "silent", "silent-cache",
      "data.allow_pipes=true 'data.train.path=pipe:exec 2> /dev/null; touch " + begun.string() + "; sleep 200'");
  const auto start = std::chrono::steady_clock::now();
  const auto stopped = shell(command + " & pid=$!; for i in $(seq 3000); do [ -e " + begun.string() +
                             " ] && break; sleep 0.01; done; kill -USR1 $pid; wait $pid");
  EXPECT_EQ(stopped.exit_code, 75) << stopped.output;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(100));
  EXPECT_EQ(nlohmann::json::parse(read(workshop() / "silent/STATE"))["state"], "requeue");
}

TEST(Offline, RanksWithNothingToDoAreTold) {
  const auto outcome = expect_success(mpirun(3) + preprocess("idle", "idle-cache",
                                                             "'data.train.path=pipe:cat " + cache_path("shapes") +
                                                                 "/00000.tar::pipe:cat " + cache_path("shapes") +
                                                                 "/00001.tar' data.allow_pipes=true"));
  EXPECT_NE(outcome.output.find("1 of 3 ranks have nothing to do: 2 archives feed no more"), std::string::npos)
      << outcome.output;
  EXPECT_EQ(inspect("idle-cache")["accepted"], 48);
}

TEST(Offline, RejectedRowsAreRememberedWithTheirReasons) {
  const auto images = workshop() / "some-bad";
  fs::create_directories(images);
  // The third image is cut short, the fifth caption is missing.
  expect_success("cd " + images.string() +
                 " && mkdir x && tar -xf $(ls ../shapes/*.tar | head -n 1) -C x && cd x && f=$(ls *.jpg | "
                 "sed -n 3p) && head -c 300 $f > ../cut && mv ../cut $f && rm $(ls *.txt | sed -n 5p) && "
                 "tar -cf ../bad.tar $(ls) && cd .. && rm -r x");
  const std::string data = "data.train.path=" + images.string() + " data.max_bad_share=0.5";
  const auto few = " 'duration=13 steps' batch.global=2 batch.micro=2 ";  // more than a pass
  expect_success(train("bad-online", data + few));
  expect_success(preprocess("bad-filled", "bad-cache", data));
  const auto ledger = nlohmann::json::parse(read(workshop() / "bad-filled/ledger.json"));
  EXPECT_EQ(ledger["rejected"]["missing_caption"], 1);
  expect_success(train("bad-offline", "data.max_bad_share=0.5 data.train.type=latents data.train.path=" +
                                          cache_path("bad-cache") + few));
  EXPECT_EQ(read(workshop() / "bad-online/ids.jsonl"), read(workshop() / "bad-offline/ids.jsonl"));
  EXPECT_EQ(read(workshop() / "bad-online/ledger.json"), read(workshop() / "bad-offline/ledger.json"));
  expect_success(preprocess("bad-again", "bad-cache", data));
  EXPECT_EQ(read(workshop() / "bad-again/ledger.json"), read(workshop() / "bad-filled/ledger.json"));

  // Training fills a cache just so: preprocess only has to say that it is complete.
  const std::string filling = " encode.cache=" + cache_path("bad-filling-cache");
  expect_success(train("bad-filling", data + few + filling));
  EXPECT_EQ(inspect("bad-filling-cache")["accepted"], 22);
  EXPECT_EQ(inspect("bad-filling-cache")["rejected"], 2);
  const auto files = json_files("bad-filling-cache");
  expect_success(preprocess("bad-completed", "bad-filling-cache", data));
  EXPECT_EQ(json_files("bad-filling-cache"), files);
  EXPECT_EQ(read(workshop() / "bad-completed/ledger.json"), read(workshop() / "bad-filled/ledger.json"));
  expect_success(train("bad-offline-again", "data.max_bad_share=0.5 data.train.type=latents data.train.path=" +
                                                cache_path("bad-filling-cache") + few));
  EXPECT_EQ(read(workshop() / "bad-offline-again/ids.jsonl"), read(workshop() / "bad-online/ids.jsonl"));

  // Who looks for them finds both rows, each once, also after a second run in the same folder.
  expect_success(preprocess("bad-filled", "bad-cache", data));
  for (const char* run : {"bad-online", "bad-filled"}) {
    std::map<std::string, std::string> reasons;
    const auto listed = lines(workshop() / run / "rejected/rank-00000.jsonl");
    for (const auto& line : listed) {
      reasons[line["key"]] = line["reason"];
      EXPECT_EQ(line["archive"], (images / "bad.tar").string());
      EXPECT_GT(line["offset"], 0);
    }
    EXPECT_EQ(listed.size(), 2u) << run;
    EXPECT_EQ(reasons,
              (std::map<std::string, std::string>{{"000000002", "truncated_image"}, {"000000004", "missing_caption"}}));
  }
}

TEST(Offline, PreprocessAsksAgainForImagesThatWereAway) {
  expect_success("mkdir " + cache_path("web") + " && tar -xf $(ls " + cache_path("shapes") + "/*.tar | head -n 1) -C " +
                 cache_path("web"));
  std::atomic<bool> away = true;
  test::TestServer server([&](const std::string& path, test::Client& client) {
    if (away && path >= "/000000020.jpg") return client.answer(404, "");
    client.answer(200, read(workshop() / "web" / path.substr(1)));
  });
  std::ofstream list(workshop() / "web.csv");
  list << "url,caption\n";
  for (int i = 0; i < 24; ++i) list << server.url("/0000000") << i / 10 << i % 10 << ".jpg,a shape\n";
  list.close();
  const auto command = preprocess("web-filled", "web-cache",
                                  "data.train.type=csv data.train.path=" + cache_path("web.csv") +
                                      " data.train.columns.image=url data.max_bad_share=0.5");
  expect_success(command);
  EXPECT_EQ(inspect("web-cache")["accepted"], 20);
  EXPECT_EQ(inspect("web-cache")["rejected"], 4);
  const auto before = json_files("web-cache");
  expect_success(command);  // and finds them missing again
  EXPECT_EQ(inspect("web-cache")["rejected"], 4);
  away = false;
  expect_success(command);
  EXPECT_EQ(inspect("web-cache")["accepted"], 24);
  EXPECT_EQ(inspect("web-cache")["rejected"], 0);
  const auto asked = server.requests();
  EXPECT_EQ(asked.at("/000000019.jpg"), 1) << "what the cache has is not asked for";
  for (const auto& name : before) EXPECT_TRUE(json_files("web-cache").contains(name)) << name;
  const auto ledger = nlohmann::json::parse(read(workshop() / "web-filled/ledger.json"));
  EXPECT_EQ(ledger["accepted"], 24);
  expect_success(
      train("web-trained", "'duration=3 steps' data.train.type=latents data.train.path=" + cache_path("web-cache")));
}

TEST(Offline, WhatCannotBeUsedIsRefusedByName) {
  const auto cache = "encode.cache=" + cache_path(complete_cache());
  const auto other = shell(train("stale", cache + " transform.interpolation=bicubic"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.output.find("transform.interpolation: \"bilinear\" -> \"bicubic\""), std::string::npos)
      << other.output;
  expect_success(millrace + " init --preset tiny seed=5 --out " + cache_path("other"));
  const auto weights = shell(train("stale", cache + " model.pipeline=" + cache_path("other")));
  EXPECT_EQ(weights.exit_code, 2);
  EXPECT_NE(weights.output.find("model.pipeline.vae"), std::string::npos) << weights.output;
  const auto turned = shell(train("stale", cache + " data.images.exif=apply"));
  EXPECT_EQ(turned.exit_code, 2);
  EXPECT_NE(turned.output.find("data.images.exif: none -> \"apply\""), std::string::npos) << turned.output;
  const auto random = shell(train("random", cache + " transform.flip=0.5"));
  EXPECT_EQ(random.exit_code, 2);
  EXPECT_NE(random.output.find("encode.cache"), std::string::npos) << random.output;
  EXPECT_EQ(shell(train("both", cache + " data.train.type=latents data.train.path=" + cache_path(complete_cache())))
                .exit_code,
            2);
  EXPECT_EQ(shell(train("no-cache", "data.train.type=latents data.train.path=" + cache_path("nowhere"))).exit_code, 74);
  const auto without = shell(millrace + " preprocess run.dir=" + cache_path("no-cache-given") +
                             " model.pipeline=" + cache_path("tiny") + " data.train.path=" + cache_path("shapes"));
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_NE(without.output.find("encode.cache"), std::string::npos) << without.output;
}

// As `download` with retry_failed leaves them: found by the first start, and never taken for storage that is away.
TEST(Offline, ArchivesThatHaveChangedAreRefusedTogether) {
  const auto changed = cache_path("changed-shapes");
  expect_success("cp -r " + cache_path("shapes") + " " + changed + " && for f in " + changed +
                 "/*.tar; do head -c 512 /dev/zero >> $f; done");
  const auto refused = shell(preprocess("changed", complete_cache(), "data.train.path=" + changed));
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_NE(refused.output.find("4 of 4 archives have another size"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("rm -r -- {00000..00003}"), std::string::npos) << refused.output;
  EXPECT_FALSE(fs::exists(workshop() / "changed"));
}

// Its STATE and DONE would be taken for the training's.
TEST(Offline, PreprocessTakesNoFolderOfARun) {
  const auto state = read(workshop() / online() / "STATE");
  const auto refused = shell(preprocess(online(), "beside"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.output.find("is the folder of a training run"), std::string::npos) << refused.output;
  EXPECT_EQ(read(workshop() / online() / "STATE"), state);
}

// ---- encode.text_on=trainer: parcels and caches hold tokens ------------------------------------------------------

const std::string on_trainer = "encode.text_on=trainer ";

const std::string& online_with_tokens() {
  static const std::string run = [] {
    expect_success(train("tokens-online", steps + on_trainer));
    return std::string("tokens-online");
  }();
  return run;
}

const std::string& cache_of_tokens() {
  static const std::string cache = [] {
    expect_success(preprocess("tokens-filled", "tokens", on_trainer));
    return std::string("tokens");
  }();
  return cache;
}

// Encoder batches differ, and with them the last bits before embeddings are rounded to half precision.
TEST(TextOnTrainer, TrainsAsWithTextOnProducers) {
  const auto on_three = [](const std::string& run, const std::string& settings) {
    expect_success(mpirun(3) + train(run, steps + ("roles.producers=1 validation.batches=2 'validation.every=3 steps' "
                                                   "data.validation.path=" +
                                                   (workshop() / "shapes").string() + " " + settings)));
    return lines(workshop() / run / "metrics.jsonl");
  };
  const auto expected = on_three("text-by-producer", ""), found = on_three("text-by-trainers", on_trainer);
  EXPECT_EQ(read(workshop() / "text-by-producer/ids.jsonl"), read(workshop() / "text-by-trainers/ids.jsonl"));
  ASSERT_EQ(expected.size(), 6u);
  ASSERT_EQ(found.size(), 6u);
  int validations = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const char* name : {"loss", "validation_loss"}) {
      if (!expected[i].contains(name)) continue;
      const double loss = expected[i][name];
      EXPECT_NEAR(found[i][name].get<double>(), loss, 1e-5 * loss) << name << " of step " << i + 1;
    }
    validations += expected[i].contains("validation_loss");
  }
  EXPECT_EQ(validations, 2);
  const auto record = "records/step-00000001.safetensors";
  EXPECT_LT(largest_difference(read_weights(workshop() / "text-by-producer" / record),
                               read_weights(workshop() / "text-by-trainers" / record)),
            1e-3);
}

TEST(TextOnTrainer, FromACacheOfTokensAsOnline) {
  const auto report = inspect(cache_of_tokens());
  EXPECT_EQ(report["tokens"], nlohmann::json({77}));
  EXPECT_EQ(report["accepted"], 96);
  for (const auto& entry : fs::directory_iterator(cache_path(cache_of_tokens())))
    EXPECT_FALSE(entry.path().filename().string().starts_with("null_caption")) << entry;
  expect_success(train("tokens-cache", steps + on_trainer + "encode.cache=" + cache_path(cache_of_tokens())));
  expect_same(online_with_tokens(), "tokens-cache");
  expect_success(train(
      "tokens-alone", steps + on_trainer + "data.train.type=latents data.train.path=" + cache_path(cache_of_tokens())));
  expect_same(online_with_tokens(), "tokens-alone");
  expect_success(train("tokens-filling", steps + on_trainer + "encode.cache=" + cache_path("tokens-filling-cache")));
  expect_same(online_with_tokens(), "tokens-filling");
  EXPECT_GE(inspect("tokens-filling-cache")["rows"], 64);
}

TEST(TextOnTrainer, ResumesToTheSameBits) {
  const auto command = train("tokens-resumed", steps + on_trainer);
  expect_success(command + "'duration=3 steps'");
  expect_success(command);
  expect_same(online_with_tokens(), "tokens-resumed");
}

// A cache of tokens fits any text encoder, and whoever fills it needs none.
TEST(TextOnTrainer, ProducersNeedNoTextEncoder) {
  const auto pipeline = workshop() / "no-text";
  fs::copy(workshop() / "tiny", pipeline, fs::copy_options::recursive);
  ASSERT_TRUE(fs::remove(pipeline / "text_encoder/model.safetensors"));
  const auto settings = "model.pipeline=" + pipeline.string() + " ";
  expect_success(preprocess("tokens-without", "tokens-without-text", on_trainer + settings));
  EXPECT_EQ(shell(preprocess("text-without", "text-without-text", settings)).exit_code, 74);
  expect_success(train("tokens-without-alone", steps + on_trainer + "data.train.type=latents data.train.path=" +
                                                   cache_path("tokens-without-text")));
  expect_same(online_with_tokens(), "tokens-without-alone");
  const auto refused = shell(
      train("tokens-untrained",
            on_trainer + settings + "data.train.type=latents data.train.path=" + cache_path("tokens-without-text")));
  EXPECT_EQ(refused.exit_code, 74) << refused.output;
  EXPECT_FALSE(fs::exists(workshop() / "tokens-untrained"));
}

TEST(TextOnTrainer, ACacheOfTheOtherKindIsRefused) {
  const auto expect_refused = [](const std::string& command, const std::string& advice) {
    const auto outcome = shell(command);
    EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.output;
    EXPECT_NE(outcome.output.find("set encode.text_on=" + advice), std::string::npos) << outcome.output;
  };
  for (const bool of_tokens : {false, true}) {
    const auto cache = cache_path(of_tokens ? cache_of_tokens() : complete_cache());
    const std::string text_on = (of_tokens ? "" : on_trainer) + "'duration=1 steps' ",
                      advice = of_tokens ? "trainer" : "producer";
    expect_refused(train("other-kind", text_on + "encode.cache=" + cache), advice);
    expect_refused(train("other-kind", text_on + "data.train.type=latents data.train.path=" + cache), advice);
    expect_refused(train("other-kind", text_on + "data.validation.type=latents data.validation.path=" + cache), advice);
    expect_refused(preprocess("other-kind", of_tokens ? cache_of_tokens() : complete_cache(), text_on), advice);
  }
  EXPECT_FALSE(fs::exists(workshop() / "other-kind"));
}

// The empty caption's tokens are made now: they must be padded as the cache's are.
TEST(TextOnTrainer, TokensOfAnotherTokenizerAreRefused) {
  const auto outcome =
      shell(train("other-tokenizer", on_trainer +
                                         "'duration=1 steps' tokenizer.pad_id=0 data.train.type=latents "
                                         "data.train.path=" +
                                         cache_path(cache_of_tokens())));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("tokenizer.pad_id"), std::string::npos) << outcome.output;
}

TEST(TextOnTrainer, TheStartSaysSo) {
  const auto outcome = expect_success(train("tokens-dry", on_trainer + "--dry-run"));
  EXPECT_NE(outcome.output.find("and tokens 77, made while training"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace millrace::e2e
