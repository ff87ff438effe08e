// init: a diffusers folder with random weights.
#include <fmt/ranges.h>

#include <ranges>

#include "command.h"
#include "launch/threads.h"
#include "load_config.h"
#include "millrace/core/files.h"
#include "millrace/core/stopwatch.h"
#include "millrace/models/presets.h"
#include "millrace/text/tokenizer_folder.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

struct InitConfig {
  std::uint64_t seed = 0;
  config::Auto<int> threads{};
  void describe(config::Section& section) {
    section.key("seed", seed, "of the random weights");
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

// CLIP's merges, put there by set-up: beside the source tree's .venv, or where `cmake --install` puts them.
fs::path find_vocabulary() {
  std::vector<fs::path> places = {MILLRACE_CLIP_VOCABULARY};
  std::error_code error;
  const auto binary = fs::read_symlink("/proc/self/exe", error);
  if (!error)
    places.insert(places.begin(), binary.parent_path().parent_path() / "share/millrace/bpe_simple_vocab_16e6.txt.gz");
  for (const auto& place : places)
    if (fs::exists(place)) return place;
  throw Error(
      Exit::io,
      fmt::format("CLIP's vocabulary is in none of {}",
                  fmt::join(places | std::views::transform([](const fs::path& p) { return p.string(); }), ", ")),
      "scripts/setup fetches it; cmake --install copies it to share/millrace");
}

int run_init(const CommandLine& line) {
  const auto loaded = load_config<InitConfig>(line);
  if (loaded.printed) return 0;
  if (loaded.root.threads.value) use_threads(*loaded.root.threads.value);
  const auto preset = parse_preset(line.get("preset"));
  const fs::path out = line.get("out");
  if (line.dry_run) {
    say("dry run: nothing was written; {} would be made: {}\n", out.string(), line.get("preset"));
    return 0;
  }
  const auto vocabulary = find_vocabulary();
  const auto write_tokenizer = [&](const fs::path& folder) {
    write_clip_tokenizer_folder(vocabulary, folder, std::string(preset_pad_token(preset)));
  };
  std::optional<std::uint64_t> seed = loaded.root.seed;
  if (line.has("no-weights")) seed.reset();
  const Stopwatch watch;
  init_pipeline(preset, write_tokenizer, out, seed);
  say("{}: {} {}, in {:.1f} s\n", out.string(), line.get("preset"),
      seed ? fmt::format("with random weights, seed {}", *seed) : "without weights", watch.seconds());
  return 0;
}

}  // namespace

Command init_command() {
  return {.name = "init",
          .summary = "a diffusers folder with random weights",
          .usage = "--preset tiny|sd1|sd2|sd2-v --out DIR [--no-weights] [seed=0]",
          .options = {{"preset", "NAME",
                       "tiny (32 px, trains on a laptop), sd1 (1.5), sd2 (2.1-base), sd2-v (2.1, 768 px)"},
                      {"out", "DIR", "the new folder"},
                      {"no-weights", "", "only the files that tell the shapes, which is all that `bench step` reads",
                       OptionSpec::Takes::nothing}},
          .run = run_init,
          .schema = schema_of<InitConfig>};
}

}  // namespace millrace
