#include "train_plans.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>

#include "train_trial.h"

namespace millrace::inject {
namespace {

const Layout both = {"both", 2, 0}, split = {"split", 3, 1}, tables = {"tables", 2, 0, true};

const ExitCodes killed = {}, undisturbed = {0}, refused = {74}, hung = {76};
const ExitCodes failed = {0, 74, 75};  // 0 where the run could go on

TrainTrial strike(const Layout& layout, Start start, const Site& site, Kind kind) {
  const bool dies = is_deadly(kind);
  TrainTrial trial{layout, start, {fault_at(site, kind)}, dies ? killed : failed};
  trial.lossy = dies ? "" : site.path;  // lines up to a checkpoint are on disk before it is begun
  trial.silent = dies;
  // So that the checkpoint that the error was about is still there at the end, if it is listed at all.
  if (!dies && site.path.starts_with("checkpoints/step") && site.path.find(".trash") == std::string::npos)
    trial.words = {"checkpoint.keep=9"};
  return trial;
}

// Faults of one layout. A run that is resumed reads more than a fresh one.
class Places {
 public:
  explicit Places(const Layout& layout) : layout_(layout) {}

  TrainTrial& add(std::vector<std::string> faults, ExitCodes ending, std::vector<std::string> words = {}) {
    TrainTrial trial{layout_, Start::resumed, std::move(faults), std::move(ending)};
    trial.words = std::move(words);
    return trials_.emplace_back(std::move(trial));
  }
  const std::vector<TrainTrial>& trials() const { return trials_; }

 private:
  const Layout& layout_;
  std::vector<TrainTrial> trials_;
};

const std::vector<std::string> patience = {"guard.hang_timeout=4 s"}, retries = {"data.retry_for=20 s"},
                               few_retries = {"data.retry_for=1 s"};

void add_processes(Places& places) {
  places.add({"kill@1:*:mpi-init"}, killed);
  places.add({"kill@1:*:loading"}, killed);
  places.add({"kill@1:4:waiting-for-samples"}, killed).start = Start::fresh;
  places.add({"kill@0:4:mpi-send"}, killed);
  places.add({"kill@0:*:mpi-finalize"}, killed);
  places.add({"abort@1:4:*"}, killed);
  places.add({"exit@0:4:training"}, killed);
  places.add({"stop@0:5:training"}, hung, patience);
  places.add({"hang@0:5:mpi-reduce"}, hung, patience);
  places.add({"hang@0:*:rename=step-00000004"}, hung, patience);
}

void add_messages(Places& places) {
  places.add({"eio@0:4:mpi-reduce"}, killed);
  places.add({"eio@0:4:mpi-send"}, killed);
  places.add({"eio@*:*:mpi-init"}, killed);
  auto& poisoned = places.add({"nan@0:4:mpi-reduce"}, undisturbed);
  poisoned.compares = false;
  poisoned.says = "is not finite";
}

void add_reads(Places& places) {
  places.add({"eio@*:*:open=archives/:1+:1"}, undisturbed, retries);
  places.add({"eio@*:*:read=archives/:1+:1"}, undisturbed, retries);
  places.add({"eio@*:*:read=archives/:3+"}, failed, few_retries);
  places.add({"eio@*:*:open=pipeline/:1+"}, refused);
  places.add({"eio@*:*:read=pipeline/:1+"}, refused);
  // By the rank that reads an encoder for all.
  places.add({"eio@*:*:open=vae/diffusion_pytorch_model.safetensors"}, refused);
  places.add({"eio@*:*:read=vae/diffusion_pytorch_model.safetensors:3"}, refused);
  places.add({"kill@*:*:open=text_encoder/model.safetensors"}, killed);
  places.add({"eio@*:*:open=checkpoints/:1+"}, refused);
  places.add({"eio@*:*:read=checkpoints/:1+"}, refused);
  places.add({"eio@*:*:list=checkpoints:1+"}, refused);
  places.add({"eio@0:*:saving/list=checkpoints:1+"}, failed);
  places.add({"eio@*:*:read=step-00000004/:1+"}, undisturbed).says = "could not be read back";
  places.add({"eio@0:*:open=run/LEASE:1+"}, refused);  // it may be another's
  places.add({"short@*:*:read:1+"}, undisturbed);
}

// An index that cannot be read is made anew, one that cannot be kept is done without.
void add_indices(Places& places) {
  places.add({"eio@*:*:open=.millrace-index:1+"}, undisturbed);
  places.add({"eio@*:*:read=.millrace-index:1+"}, undisturbed);
  for (const std::string call : {"mkdir=indices", "create=.millrace-index.tmp", "write=.millrace-index.tmp",
                                 "fsync=.millrace-index.tmp", "rename=.millrace-index"})
    places.add({"eio@*:*:" + call + ":1+"}, undisturbed).start = Start::fresh;
  places.add({"enospc@*:*:write=.millrace-index.tmp:1+"}, undisturbed).start = Start::fresh;
  places.add({"kill@*:*:write=.millrace-index.tmp"}, killed).start = Start::fresh;
  places.add({"power@*:*:fsync=indices"}, killed).start = Start::fresh;
}

// The first reads of a Parquet file are those of its metadata.
void add_table_reads(Places& places) {
  places.add({"eio@*:*:open=.parquet:1+:1"}, undisturbed, retries);
  places.add({"eio@*:*:read=.parquet:1+:1"}, undisturbed, retries);
  places.add({"eio@*:*:read=.parquet:1+"}, refused, few_retries);
  places.add({"eio@*:*:read=.parquet:10+"}, failed, few_retries);
  places.add({"short@*:*:read=.parquet:1+"}, undisturbed);
}

void add_writes(Places& places) {
  places.add({"short@*:*:write:1+"}, undisturbed).start = Start::fresh;
  places.add({"slow@*:*:fsync:1+:0.02"}, undisturbed);
  places.add({"enospc@*:*:write=run/:60+", "enospc@*:*:create=run/:20+"}, failed).lossy = "ids.jsonl metrics.jsonl";
  places.add({"edquot@*:*:write=run/checkpoints/:1+"}, failed);
  auto& damaged = places.add(
      {"nosync@0:*:fsync=step-00000006.tmp/shard-00000-of-00002.safetensors.tmp", "power@0:*:rename=run/STATE:3"},
      killed, {"checkpoint.keep=2"});
  damaged.damages = true;
  damaged.lossy = "ids.jsonl metrics.jsonl";
  damaged.silent = true;
}

std::vector<TrainTrial> strikes_on(const Workshop& workshop, const Layout& layout) {
  std::vector<TrainTrial> trials;
  for (const auto start : {Start::fresh, Start::resumed})
    for (const Site& site : changing_calls(workshop, layout, start))
      for (const Kind kind : kinds_at(site)) trials.push_back(strike(layout, start, site, kind));
  return trials;
}

std::vector<TrainTrial> places_of(const Workshop&, const Layout& layout) {
  Places places(layout);
  if (layout.tables) {
    add_table_reads(places);
  } else {
    for (const auto add : {add_processes, add_messages, add_reads, add_indices, add_writes}) add(places);
  }
  return places.trials();
}

// The trials of prepared layouts, in their order; one layout at a time on every core.
std::vector<Trial> plan_each(const Workshop& workshop, const std::vector<const Layout*>& layouts,
                             std::vector<TrainTrial> (*plan)(const Workshop&, const Layout&)) {
  std::vector<std::vector<TrainTrial>> planned(layouts.size());
  std::vector<std::exception_ptr> errors(layouts.size());
  std::atomic<std::size_t> next = 0;
  storm::work_on(workshop.cores, 0, [&] {
    for (std::size_t i; (i = next++) < layouts.size();) try {
        prepare(workshop, *layouts[i]);
        planned[i] = plan(workshop, *layouts[i]);
      } catch (...) {
        errors[i] = std::current_exception();
      }
  });
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
  std::vector<Trial> trials;
  for (const auto& of_layout : planned)
    for (const auto& trial : of_layout) trials.push_back(to_trial(workshop, trial));
  return trials;
}

}  // namespace

std::vector<Trial> plan_train_calls(const Workshop& workshop) {
  return plan_each(workshop, {&both, &split}, strikes_on);
}

std::vector<Trial> plan_train_places(const Workshop& workshop) {
  return plan_each(workshop, {&both, &split, &tables}, places_of);
}

}  // namespace millrace::inject
