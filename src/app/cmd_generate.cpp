// generate: images from a pipeline folder.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/generate/generate.h"
#include "millrace/generate/prompts.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "sections.h"

namespace millrace {
namespace {

struct GenerateRoot {
  DeviceConfig run;
  PrecisionConfig model;
  TokenizerConfig tokenizer;
  GenerateConfig generate;

  void describe(config::Section& section) {
    section.section("run", run, "where it runs").ignore({"dir", "seed", "deterministic"});
    section.section("model", model, "arithmetic")
        .ignore({"pipeline", "unet", "gradient_checkpointing", "channels_last", "fused_kernels"});
    section.section("tokenizer", tokenizer, "from prompts to ids");
    section.section("generate", generate, "how images are made");
    ignore_other_sections(section);
  }
};

std::vector<ImageRequest> requests_of(const CommandLine& line, const GenerateConfig& config) {
  if (line.has("prompt") && line.has("prompts")) fail(Exit::usage, "--prompt and --prompts do not go together");
  std::vector<ImageRequest> requests;
  if (line.has("prompts")) {
    requests = read_prompts(line.get("prompts"), {"", config.negative_prompt, config.seed});
  } else {
    (void)line.get("prompt");
    for (const auto& prompt : line.options.at("prompt"))
      requests.push_back({prompt, config.negative_prompt, config.seed + requests.size()});
  }
  if (requests.empty()) fail(Exit::usage, "there is no prompt");
  return requests;
}

int run_generate(const CommandLine& line) {
  const auto loaded = load_config<GenerateRoot>(line);
  if (loaded.printed) return 0;
  const auto& c = loaded.root;
  const auto requests = requests_of(line, c.generate);
  const std::filesystem::path out = line.get("out");
  const auto device = resolve_device(c.run.device);
  const auto dtype = parse_dtype(c.model.dtype, device);
  const auto folder = PipelineFolder::open(line.get("pipeline"));
  const auto tokenizer = ClipTokenizer::load(folder.component("tokenizer"), c.tokenizer);
  ImageModel model{folder.load_unet(device, dtype), folder.load_vae(device, dtype),
                   folder.load_text_encoder(device, dtype), tokenizer, folder.scheduler()};
  std::optional<torch::Tensor> initial;
  if (c.generate.initial_latents) initial = load_latents(*c.generate.initial_latents);
  if (line.dry_run) {
    fmt::print("dry run: nothing was written; {} images would go to {}\n", requests.size(), out.string());
    return 0;
  }

  std::error_code error;
  std::filesystem::create_directories(out, error);
  if (error) fail(Exit::io, "--out {}: {}", out.string(), error.message());
  std::vector<Image> images;
  std::vector<std::string> prompts;
  std::vector<torch::Tensor> latents;
  std::string lines;
  generate(model, requests, c.generate, initial, [&](const GeneratedImage& made) {
    const auto file = fmt::format("{:05d}.png", made.index);
    write_png(out / file, made.image);
    const auto& request = requests[made.index];
    lines +=
        nlohmann::ordered_json{
            {"index", made.index}, {"file", file}, {"prompt", request.prompt}, {"seed", request.seed}}
            .dump() +
        "\n";
    images.push_back(made.image);
    prompts.push_back(request.prompt);
    if (c.generate.save_latents) latents.push_back(made.latent);
    const auto progress = fmt::format("{} of {} images", images.size(), requests.size());
    if (log::on_terminal()) log::progress(progress);
  });
  log::progress("");
  write_png(out / "grid.png", make_grid(images, prompts));
  write_file_atomically(out / "images.jsonl", lines);
  if (c.generate.save_latents) save_latents(out / "latents.safetensors", torch::stack(latents));
  fmt::print("{} images in {} (all of them: {})\n", images.size(), out.string(), (out / "grid.png").string());
  return 0;
}

}  // namespace

Command generate_command() {
  return {"generate",
          "images from prompts",
          "--pipeline DIR (--prompt TEXT... | --prompts FILE) --out DIR [generate.KEY=VALUE]...",
          {{"pipeline", "DIR", "diffusers folder"},
           {"prompt", "TEXT...", "the prompts, one image each", OptionSpec::Takes::many},
           {"prompts", "FILE", "a prompt a line, or .jsonl with prompt, seed, negative_prompt"},
           {"out", "DIR", "00000.png..., grid.png, images.jsonl"}},
          false,
          run_generate,
          schema_of<GenerateRoot>};
}

}  // namespace millrace
