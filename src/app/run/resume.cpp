#include "run/resume.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "run/encoders.h"

namespace millrace {

// Keys a restart may not change without saying so.
static const std::vector<std::string> fixed_keys = {
    "run.seed",    "objective.prediction", "objective.zero_terminal_snr", "batch.global", "data.train",
    "data.images", "data.stripes",         "data.shuffle_block",          "transform",    "tokenizer"};

static void refuse_no_checkpoint(const std::filesystem::path& resume) {
  std::error_code error;
  if (std::filesystem::exists(resume / run_file::manifest, error) || error) return;
  std::string there;
  for (const auto& checkpoint : list_checkpoints(resume)) there += fmt::format(" {}", checkpoint.path.string());
  throw Error(
      Exit::io, fmt::format("checkpoint.resume: {} is no checkpoint", resume.string()),
      there.empty() ? "auto, never, or a folder such as RUN/checkpoints/step-00001000" : "this run has" + there);
}

// What STATE, else DONE, names as the newest checkpoint; nothing where both say that there is none, or are not there.
static std::optional<std::string> checkpoint_of_before(const std::filesystem::path& run_dir) {
  for (const char* name : {run_file::state, run_file::done}) try {
      const auto json = nlohmann::json::parse(read_file(run_dir / name));
      const auto& checkpoint = json.at("checkpoint");
      return checkpoint.is_string() ? std::optional(checkpoint.get<std::string>()) : std::nullopt;
    } catch (const std::exception&) {  // a crash may have cut it short
    }
  return std::nullopt;
}

void refuse_lost_checkpoints(const std::filesystem::path& run_dir) {
  const auto before = checkpoint_of_before(run_dir);
  if (!before) return;
  const auto checkpoints = checkpoints_in(run_dir);
  std::error_code error;  // the only one has proved to be damaged, behind which this process was killed
  if (std::filesystem::exists(checkpoints / (place_of_checkpoint(*before).filename().string() + ".damaged"), error))
    return;
  throw Error(Exit::io,
              fmt::format("{} was the newest checkpoint of {}, and there is none in {}", *before, run_dir.string(),
                          checkpoints.string()),
              "is their disk mounted? One that lies elsewhere goes there, or a link to it; to begin anew take another "
              "run.dir, or checkpoint.resume=never until it has saved");
}

std::optional<CheckpointReader> find_start(const Group& world, const std::filesystem::path& run_dir,
                                           const std::string& resume, const std::vector<int>& trainers) {
  if (resume == "auto") {
    auto found = find_checkpoint(run_dir, world, {}, trainers);
    if (!found) on_root(world, [&] { refuse_lost_checkpoints(run_dir); });
    return found;
  }
  if (resume != "never") {
    on_root(world, [&] { refuse_no_checkpoint(resume); });
    return CheckpointReader::open(resume, world, trainers);
  }
  on_root(world, [&] {
    const auto there = list_checkpoints(run_dir);
    if (there.empty()) return;
    throw Error(Exit::usage,
                fmt::format("checkpoint.resume=never, but {} holds {} checkpoints", run_dir.string(), there.size()),
                "choose another run.dir, or checkpoint.resume=auto");
  });
  return std::nullopt;
}

static double rate_of_next_step(const TrainConfig& c, const RunPoint& point) {
  const auto schedule = plan_lr_schedule(c.optim, c.duration, c.batch.global);
  return learning_rate(schedule, point.step + 1, point.samples + c.batch.global);
}

std::optional<std::string> complaint_about_rate(const TrainConfig& before, const TrainConfig& now,
                                                const RunPoint& point) {
  constexpr double tolerable = 1.1;
  if (reached(now.duration, point)) return std::nullopt;
  const double usual = rate_of_next_step(before, point), rate = rate_of_next_step(now, point);
  if (std::max(usual, rate) <= tolerable * std::min(usual, rate)) return std::nullopt;
  return fmt::format("the learning rate of step {} is {:.3g}; by the settings of the checkpoint it would be {:.3g}",
                     point.step + 1, rate, usual);
}

static void refuse_another_network(const CheckpointReader& checkpoint, const RunIdentity& before,
                                   const RunIdentity& now, const std::vector<std::string>& changes) {
  if (before.kind != now.kind)
    throw Error(Exit::usage, fmt::format("{} is of the other of two commands", checkpoint.path().string()),
                "`train` goes on with a U-Net, `train-autoencoder` with an autoencoder: choose another run.dir");
  const bool is_vae = now.kind == RunIdentity::Kind::vae, has_own_file = !is_vae && now.config.model.unet.config;
  throw Error(Exit::usage,
              fmt::format("{} holds the weights of another network than that of {}:\n  {}", checkpoint.path().string(),
                          has_own_file ? "model.unet.config" : "model.pipeline", fmt::join(changes, "\n  ")),
              fmt::format("set {} back, or choose another run.dir: these weights fit no other network",
                          is_vae ? "model.pipeline" : "model.unet.config and model.pipeline"));
}

using Changes = std::vector<config::Change>;

static bool has_key(const Changes& changes, std::string_view key) {
  return std::ranges::find(changes, key, &config::Change::key) != changes.end();
}

static std::string to_text(const config::Change& change) {
  return fmt::format("{}: {} -> {}", change.key, change.before, change.after);
}

// Of the keys that a restart must keep.
static std::vector<std::string> settings_changed(const Changes& changes, const RunIdentity& before,
                                                 const RunIdentity& now, const Manifest& archives) {
  std::vector<std::string> changed;
  const bool may_move = may_have_moved(now, archives) || lie_elsewhere(before, now) == false;
  for (const auto& change : changes) {
    const bool is_fixed =
        std::ranges::any_of(fixed_keys, [&](const std::string& key) { return config::is_in(change.key, key); });
    if (!is_fixed || means_the_same(change, before, now)) continue;
    if (change.key == "data.train.path" && may_move) continue;
    changed.push_back(to_text(change));
  }
  return changed;
}

static std::vector<std::string> data_changed(const CheckpointReader& checkpoint, const RunIdentity& before,
                                             const RunIdentity& now, const Manifest& archives) {
  if (before.data == now.data) return {};
  std::vector<std::string> changed = {fmt::format("data: {} -> {}", before.data.dump(), now.data.dump())};
  const auto digest = before.data.is_object() ? before.data.value("manifest", "") : "";
  if (!digest.empty() && digest != archives.digest().hex())
    for (const auto& change : data_changes(checkpoint, digest, archives)) changed.push_back("data: " + change);
  return changed;
}

// Zero terminal SNR is told by its key already.
static std::vector<std::string> encoders_changed(const Changes& changes, const RunIdentity& before,
                                                 const RunIdentity& now) {
  std::vector<std::string> changed;
  const bool tells_snr = has_key(changes, "objective.zero_terminal_snr");
  for (auto& [part, text] : encoder_changes(before.encoders, now.encoders))
    if (!tells_snr || part != "scheduler.rescale_betas_zero_snr") changed.push_back(std::move(text));
  return changed;
}

void check_resume(const CheckpointReader& checkpoint, const Changes& changes, const RunIdentity& identity,
                  const Manifest& archives, bool allow_changes) {
  const auto before = RunIdentity::from_manifest(checkpoint.manifest());
  for (const auto& change : changes) log::info("changed since the checkpoint: {}", to_text(change));
  const auto of_model = model_changes(before, identity);
  std::vector<std::string> refused;
  for (const auto& part :
       {settings_changed(changes, before, identity, archives), data_changed(checkpoint, before, identity, archives),
        of_model, encoders_changed(changes, before, identity)})
    refused.insert(refused.end(), part.begin(), part.end());
  if (!of_model.empty() && !holds_network(checkpoint, identity))
    refuse_another_network(checkpoint, before, identity, refused);
  if (!refused.empty() && !allow_changes)
    throw Error(
        Exit::usage,
        fmt::format("{} was written by another setup:\n  {}", checkpoint.path().string(), fmt::join(refused, "\n  ")),
        "set these back, choose another run.dir, or say checkpoint.allow_changes=true");
  // Not refused: a variable in the path may name what each job has copied to a disk of its own.
  if (before.data == identity.data && lie_elsewhere(before, identity) == true && !has_key(changes, "data.train.path"))
    log::warning("data.train.path reads as before, but leads elsewhere: what lies there is taken for the same data");
  for (const auto& text : refused) log::warning("continuing although this changed: {}", text);
  const auto rates = complaint_about_rate(before.config, identity.config, checkpoint.state().point());
  if (rates) log::warning("{}", *rates);
}

KeptCursors kept_cursors(const RunIdentity& before, const RunIdentity& now) {
  if (before.data != now.data) return KeptCursors::none;
  const auto changes = config::diff(before.config_yaml, now.config);
  const auto is_other = [&](std::string_view key) {
    return std::ranges::any_of(changes, [&](const config::Change& change) {
      return config::is_in(change.key, key) && !means_the_same(change, before, now);
    });
  };
  if (is_other("run.seed")) return KeptCursors::epoch;
  // What the filters see and keep, and how much of it is shuffled together: see NOTE [Order by stripes].
  for (const char* key : {"data.shuffle_block", "data.train.filters", "data.train.columns"})
    if (is_other(key)) return KeptCursors::rows;
  return KeptCursors::all;
}

bool has_same_batches(const RunIdentity& before, const RunIdentity& now) {
  return before.config.batch.global == now.config.batch.global && kept_cursors(before, now) == KeptCursors::all;
}

RunState resume_state(const CheckpointReader& checkpoint, const RunIdentity& identity) {
  const auto before = RunIdentity::from_manifest(checkpoint.manifest());
  RunState state = checkpoint.state();
  if (!has_same_batches(before, identity)) state.used_up.clear();  // these steps have others now
  const auto kept = kept_cursors(before, identity);
  if (kept == KeptCursors::all) return state;
  if (kept == KeptCursors::none) {
    log::warning(
        "the data are not those of the checkpoint: they are read from their beginning, and counted anew; samples that "
        "were used before draw the same numbers again, unless run.seed is another one");
    state.cursors.clear();
  } else if (kept == KeptCursors::epoch) {
    log::warning(
        "the order of the data is not that of the checkpoint: the pass over them begins anew, so some samples of it "
        "come twice");
    for (auto& [stripe, cursor] : state.cursors) cursor = {cursor.epoch, 0, 0, 0};
  } else {
    log::warning(
        "rows are not shuffled as in the checkpoint: the blocks in work begin anew, so some of their samples come "
        "twice");
    for (auto& [stripe, cursor] : state.cursors) cursor.given = 0;
  }
  return state;
}

RunState state_with_ledger(const Start& start, const Group& trainers) {
  RunState state = start.state;
  if (start.checkpoint && !state.cursors.empty()) on_root(trainers, [&] { state.ledger = start.checkpoint->ledger(); });
  return state;
}

}  // namespace millrace
