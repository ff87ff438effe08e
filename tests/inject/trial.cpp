#include "trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "storm/pipeline.h"
#include "storm/process.h"

namespace millrace::inject {
namespace {

using storm::Command;
using storm::Job;

const char* const run_name = "run";

struct Life {
  Command command;
  storm::Ending ending;
  std::string output;
};

Command train_command(const fs::path& program, const Workshop& workshop, const Layout& layout, const fs::path& run,
                      int duration) {
  Command command{{"mpirun", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(layout.ranks)}};
  auto& words = command.words;
  for (const std::string& word :
       {program.string(), std::string("train"), "run.dir=" + run.string(), std::string("run.device=cpu"),
        "model.pipeline=" + workshop.pipeline.string(), "data.train.path=" + workshop.archives.string(),
        fmt::format("transform.resolution={}", storm::pipeline_resolution), std::string("encode.batch_size=8"),
        std::string("data.threads=1"), std::string("data.shuffle_block=2"), std::string("batch.global=8"),
        std::string("batch.micro=2"), std::string("optim.lr=1e-3"), std::string("optim.warmup=0 steps"),
        std::string("log.ids=true"), std::string("log.every=1 steps"),
        fmt::format("checkpoint.every={} steps", save_every), std::string("checkpoint.keep=1"),
        fmt::format("duration={} steps", duration)})
    words.push_back(word);
  if (layout.producers) words.push_back(fmt::format("roles.producers={}", layout.producers));
  return command;
}

Life live(const Workshop& workshop, Command command, const fs::path& folder, const std::string& name) {
  const auto output = folder / (name + ".out"), temporary = folder / "tmp";
  fs::create_directories(temporary);
  Job job(command, output, temporary);
  const auto ending = job.wait(workshop.limit, [](Job&) {});
  return {std::move(command), ending, read_file(output)};
}

void inject(Command& command, const std::string& what) {
  const auto at = std::ranges::find(command.words, "train");
  command.words.insert(at, {"--inject", what});
}

void expect_success(const Life& life, const std::string& what) {
  if (life.ending.exit_code != 0) fail(Exit::bug, "{}: {}\n{}", what, life.command.text(), life.output);
}

fs::path straight_run(const Workshop& workshop, const Layout& layout) {
  return workshop.folder / (layout.name + "-straight");
}
fs::path begun_run(const Workshop& workshop, const Layout& layout) {
  return workshop.folder / (layout.name + "-begun");
}

void copy_start(const Workshop& workshop, const Layout& layout, Start start, const fs::path& run) {
  if (start == Start::resumed) fs::copy(begun_run(workshop, layout), run, fs::copy_options::recursive);
}

// The largest number that follows `text` in the lines that the program itself has written.
int largest_after(const std::string& output, const std::string& text) {
  int largest = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(text);
    if (at == line.npos || line.starts_with("millrace_inject:") || line.find("is not used") != line.npos) continue;
    largest = std::max(largest, std::atoi(line.c_str() + at + text.size()));
  }
  return largest;
}

std::vector<int> listed_checkpoints(const fs::path& run) {
  std::vector<int> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && name.size() == 13) steps.push_back(std::atoi(name.c_str() + 5));
  }
  std::ranges::sort(steps);
  return steps;
}

Troubles check_checkpoints(const Workshop& workshop, const fs::path& run, const fs::path& folder) {
  Troubles troubles;
  for (const int step : listed_checkpoints(run)) {
    const auto path = run / "checkpoints" / fmt::format("step-{:08d}", step);
    const auto life = live(workshop, {{workshop.millrace.string(), "inspect", path.string()}}, folder,
                           fmt::format("inspect-{}", step));
    if (life.ending.exit_code != 0) troubles.push_back(fmt::format("{} is not valid: {}", path.string(), life.output));
  }
  return troubles;
}

Troubles check_leftovers(const fs::path& folder) {
  Troubles troubles;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.find(".tmp") != name.npos || name.find(".trash") != name.npos)
      troubles.push_back(entry.path().string() + " is left over");
  }
  return troubles;
}

bool is_right(Ending expected, int code) {
  switch (expected) {
    case Ending::killed:
      return code != 0;
    case Ending::failed:
      return code == 0 || code == 74 || code == 75;
    case Ending::undisturbed:
      return code == 0;
    case Ending::hung:
      return code == 76;
  }
  return false;
}

// What the life with the fault may end with, and what it may leave.
Troubles check_faulty_life(const Trial& trial, const Life& life) {
  const auto& ending = life.ending;
  if (ending.timed_out) return {"hangs\n" + ending.picture};
  Troubles troubles;
  for (const auto& survivor : ending.survivors) troubles.push_back("left behind: " + survivor);
  if (life.output.find("millrace_inject: rank") == std::string::npos) troubles.push_back("the fault never came");
  if (!is_right(trial.ending, ending.exit_code)) troubles.push_back(fmt::format("exit {}", ending.exit_code));
  if (life.output.find(trial.says) == std::string::npos) troubles.push_back("nobody says \"" + trial.says + "\"");
  return troubles;
}

// Lines of a side file that could not be written are lost for good. Then the rest is compared.
Troubles compare(const Workshop& workshop, const Trial& trial, const fs::path& run, const Life& faulty) {
  const auto straight = straight_run(workshop, *trial.layout);
  const auto compared = [&] { return storm::compare_runs(run, straight, steps, /*to_the_bit=*/true); };
  const auto lacks_lines = [](const Troubles& troubles, const std::string& file) {
    return std::ranges::any_of(troubles, [&](const auto& trouble) { return trouble.starts_with(file + " has "); });
  };
  auto troubles = compared();
  for (const std::string file : {"ids.jsonl", "metrics.jsonl"}) {
    if (trial.lossy.find(file) == std::string::npos || !lacks_lines(troubles, file)) continue;
    fs::copy_file(straight / file, run / file, fs::copy_options::overwrite_existing);
    troubles = compared();
    const auto said = std::ranges::any_of(std::vector{":", " "}, [&](const std::string& mark) {
      return faulty.output.find(file + mark) != std::string::npos;
    });
    if (!trial.silent && !said) troubles.push_back(file + " lacks lines, and nobody said so");
  }
  return troubles;
}

std::string last_lines(const std::string& text, std::size_t bytes) {
  return text.size() <= bytes ? text : "..." + text.substr(text.size() - bytes);
}

}  // namespace

std::string Trial::describe() const {
  std::string text = fmt::format("{} {}:", layout->name, start == Start::fresh ? "fresh" : "resumed");
  for (const auto& fault : faults) text += " " + fault;
  for (const auto& word : words) text += " " + word;
  return text;
}

void prepare(const Workshop& workshop, const Layout& layout) {
  const auto plain = [&](const fs::path& run, int duration, const std::string& name) {
    expect_success(live(workshop, train_command(workshop.millrace, workshop, layout, run, duration), workshop.folder,
                        layout.name + "-" + name),
                   name);
  };
  plain(straight_run(workshop, layout), steps, "straight");
  plain(begun_run(workshop, layout), save_every, "begun");
}

std::vector<Trial> plan_calls(const Workshop& workshop, const Layout& layout) {
  std::vector<Trial> trials;
  for (const auto start : {Start::fresh, Start::resumed}) {
    const auto folder = workshop.folder / fmt::format("{}-count-{}", layout.name, static_cast<int>(start));
    const auto run = folder / run_name;
    fs::create_directories(folder / "counts");
    copy_start(workshop, layout, start, run);
    auto command = train_command(workshop.injecting, workshop, layout, run, steps);
    inject(command, "count=" + (folder / "counts").string());
    expect_success(live(workshop, command, folder, "count"), "counting");
    const auto sites = read_sites(folder / "counts", layout.ranks, run);
    fs::remove_all(folder);
    for (const Site& site : sites) {
      const auto add = [&](Kind kind) {
        Trial trial{&layout, start, {site.fault(kind, run_name, /*onwards=*/kind == Kind::enospc).text}};
        const bool dies = kind == Kind::kill || kind == Kind::power;
        if (dies) trial.ending = Ending::killed;
        trial.lossy = kind == Kind::power ? "ids.jsonl metrics.jsonl" : dies ? "" : site.path;
        trial.silent = dies;
        // So that the checkpoint that the error was about is still there at the end, if it is listed at all.
        if (!dies && site.path.starts_with("checkpoints/step") && site.path.find(".trash") == std::string::npos)
          trial.words = {"checkpoint.keep=9"};
        trials.push_back(std::move(trial));
      };
      add(Kind::eio);
      const bool takes_room = site.call != Call::unlink && site.call != Call::close;
      if (takes_room) add(Kind::enospc);
      // Killed in a sync or a close the next call finds what it finds.
      if (site.call != Call::fsync && site.call != Call::close) add(Kind::kill);
      if (site.call != Call::close && site.call != Call::mkdir) add(Kind::power);
    }
  }
  return trials;
}

std::vector<Trial> plan_places(const Layout& layout) {
  const std::vector<std::string> patience = {"guard.hang_timeout=4 s"}, retries = {"data.retry_for=20 s"};
  std::vector<Trial> trials;
  const auto add = [&](std::vector<std::string> faults, Ending ending, std::vector<std::string> words = {}) -> Trial& {
    Trial trial{&layout, Start::resumed, std::move(faults), ending};
    trial.words = std::move(words);
    return trials.emplace_back(std::move(trial));
  };
  add({"kill@1:*:mpi-init"}, Ending::killed);
  add({"kill@1:*:loading"}, Ending::killed);
  add({"kill@1:4:waiting-for-samples"}, Ending::killed).start = Start::fresh;
  add({"kill@0:4:mpi-send"}, Ending::killed);
  add({"kill@0:*:mpi-finalize"}, Ending::killed);
  add({"abort@1:4:*"}, Ending::killed);
  add({"exit@0:4:training"}, Ending::killed);
  add({"stop@0:5:training"}, Ending::hung, patience);
  add({"hang@0:5:mpi-reduce"}, Ending::hung, patience);
  add({"hang@0:*:rename=step-00000004"}, Ending::hung, patience);
  add({"eio@0:4:mpi-reduce"}, Ending::killed);
  add({"eio@0:4:mpi-send"}, Ending::killed);
  add({"eio@*:*:mpi-init"}, Ending::killed);
  add({"eio@*:*:read=archives/:1+:1"}, Ending::undisturbed, retries);
  add({"eio@*:*:read=archives/:3+"}, Ending::failed, {"data.retry_for=1 s"});
  add({"eio@*:*:open=pipeline/:1+"}, Ending::failed);
  add({"short@*:*:read:1+"}, Ending::undisturbed);
  add({"short@*:*:write:1+"}, Ending::undisturbed).start = Start::fresh;
  add({"slow@*:*:fsync:1+:0.02"}, Ending::undisturbed);
  add({"enospc@*:*:write=run/:60+", "enospc@*:*:create=run/:20+"}, Ending::failed).lossy = "ids.jsonl metrics.jsonl";
  add({"edquot@*:*:write=run/checkpoints/:1+"}, Ending::failed);
  add({"nosync@0:*:fsync=step-00000006.tmp/shard-00000-of-00002.safetensors.tmp", "power@0:*:rename=run/STATE:3"},
      Ending::killed, {"checkpoint.keep=2"})
      .damages = true;
  trials.back().lossy = "ids.jsonl metrics.jsonl";
  trials.back().silent = true;
  auto& poisoned = add({"nan@0:4:mpi-reduce"}, Ending::undisturbed);
  poisoned.compares = false;
  poisoned.says = "is not finite";
  return trials;
}

Troubles run_trial(const Workshop& workshop, const Trial& trial, const fs::path& folder) {
  const auto run = folder / run_name;
  fs::create_directories(folder);
  copy_start(workshop, *trial.layout, trial.start, run);
  auto command = train_command(workshop.injecting, workshop, *trial.layout, run, steps);
  for (const auto& fault : trial.faults) inject(command, fault);
  command.words.insert(command.words.end(), trial.words.begin(), trial.words.end());
  const auto faulty = live(workshop, command, folder, "faulty");
  auto troubles = check_faulty_life(trial, faulty);
  const auto add = [&](const Troubles& more) { troubles.insert(troubles.end(), more.begin(), more.end()); };
  if (!trial.damages) add(check_checkpoints(workshop, run, folder));

  auto listed = listed_checkpoints(run);
  if (trial.damages && !listed.empty()) listed.pop_back();
  const int newest = listed.empty() ? 0 : listed.back();
  const int committed = std::max(trial.start == Start::resumed ? save_every : 0,
                                 largest_after(faulty.output, "checkpoint " + run.string() + "/checkpoints/step-"));
  const auto next =
      live(workshop, train_command(workshop.millrace, workshop, *trial.layout, run, steps), folder, "next");
  const int from =
      std::max(largest_after(next.output, "steps, from step "), largest_after(next.output, "has reached step "));
  if (next.ending.exit_code != 0) {
    troubles.push_back(next.ending.timed_out ? "the next start hangs"
                                             : fmt::format("the next start ends with {}", next.ending.exit_code));
  } else {
    if (from != newest || (from < committed && !trial.damages))
      troubles.push_back(
          fmt::format("the next start begins at step {}; the newest checkpoint was that of {}, {} was "
                      "committed",
                      from, newest, committed));
    if (trial.compares) add(compare(workshop, trial, run, faulty));
    if (from < steps) add(check_leftovers(run));  // where there is nothing to train nothing is touched
  }
  if (!troubles.empty())
    troubles.push_back(fmt::format("\n  $ {}\n{}\n  $ {}\n{}", faulty.command.text(), last_lines(faulty.output, 2500),
                                   next.command.text(), last_lines(next.output, 1500)));
  return troubles;
}

}  // namespace millrace::inject
