// tokenize: JSON strings in, JSON arrays of 77 ids out, a line each.
#include <iostream>
#include <nlohmann/json.hpp>

#include "command.h"
#include "millrace/core/storage_error.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/text/tokenizer.h"
#include "output.h"

namespace millrace {
namespace {

TokenizerConfig::Mode parse_mode(const std::string& word) {
  using Mode = TokenizerConfig::Mode;
  if (word == "auto" || word == "hf") return Mode::hf;
  if (word == "open_clip") return Mode::open_clip;
  fail(Exit::usage, "--mode {}: auto, hf or open_clip", word);
}

int run_tokenize(const CommandLine& line) {
  TokenizerConfig config;
  config.mode = parse_mode(line.find("mode").value_or("auto"));
  const auto tokenizer = ClipTokenizer::load(PipelineFolder::open(line.get("pipeline")).component("tokenizer"), config);
  if (line.dry_run) {
    say("dry run: nothing was read\n");
    return 0;
  }
  std::int64_t number = 0;
  for (std::string text; std::getline(std::cin, text);) {
    ++number;
    if (text.empty()) continue;
    const auto caption = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!caption.is_string()) fail(Exit::io, "standard input, line {}: not a JSON string", number);
    std::cout << nlohmann::json(tokenizer.encode(caption.get<std::string>())).dump() << '\n';
  }
  if (std::cin.bad()) fail_errno("cannot read", "standard input");
  return 0;
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .summary = "captions -> CLIP ids, line by line",
          .usage = "--pipeline DIR [--mode auto|hf|open_clip] < captions.jsonl",
          .options = {{"pipeline", "DIR", "diffusers folder whose tokenizer is used"},
                      {"mode", "MODE", "hf = as transformers' fast tokenizer; open_clip = as open_clip's; auto = hf"}},
          .run = run_tokenize,
          .prints = true};
}

}  // namespace millrace
