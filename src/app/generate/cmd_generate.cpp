// generate: images from a pipeline folder.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "app_config.h"
#include "command.h"
#include "generate/picture_list.h"
#include "launch/picture_units.h"
#include "launch/run_ranks.h"
#include "launch/session.h"
#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/text.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/generate/generate.h"
#include "millrace/generate/prompts.h"
#include "millrace/image/decode.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

constexpr std::size_t grid_pictures = 64;  // a larger grid shows no more

struct GenerateRoot {
  DeviceConfig run;
  PrecisionConfig model;
  TokenizerConfig tokenizer;
  GenerateConfig generate;
  GuardConfig guard;
  config::Auto<int> threads{};

  void describe(config::Section& section) {
    section.section("run", run, "where it runs");
    section.section("model", model, "arithmetic");
    section.section("tokenizer", tokenizer, "from prompts to ids");
    section.section("generate", generate, "how images are made");
    describe_hang_guard(section, guard);
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

std::vector<ImageRequest> requests_of(const CommandLine& line, const GenerateConfig& config) {
  if (line.has("prompt") && line.has("prompts")) fail(Exit::usage, "--prompt and --prompts do not go together");
  std::vector<ImageRequest> requests;
  if (line.has("prompts")) {
    requests = with_key("prompts", [&] {
      return read_prompts(line.get("prompts"), {"", config.negative_prompt, config.seed});
    });
  } else {
    (void)line.get("prompt");
    for (const auto& prompt : line.options.at("prompt"))
      requests.push_back({valid_utf8(prompt), config.negative_prompt, config.seed + requests.size()});
  }
  if (requests.empty()) fail(Exit::usage, "there is no prompt");
  return requests;
}

// Of everything in the folder that a picture depends on.
std::string digest_of(const PipelineFolder& folder, const TokenizerConfig& tokenizer) {
  nlohmann::json parts = {tokenizer_fingerprint(folder, tokenizer), folder.scheduler().to_json(), folder.config("vae")};
  for (const char* component : {"unet", "vae", "text_encoder"}) parts.push_back(network_digest(folder, component));
  return hash128(parts.dump()).hex();
}

// One command: its networks on every rank, its list of pictures, and the folder that they go to.
class Generation {
 public:
  Generation(const Session& session, const GenerateRoot& root, const CommandLine& line)
      : session_(session),
        root_(root),
        out_(line.get("out")),
        dtype_(parse_dtype(root.model.dtype, session.device)),
        requests_(requests_of(line, root.generate)),
        folder_(PipelineFolder::open(line.get("pipeline"))),
        tokenizer_(ClipTokenizer::load(folder_.component("tokenizer"), root.tokenizer)),
        model_{folder_.load_unet(session.device, dtype_), folder_.load_vae(session.device, dtype_),
               folder_.load_text_encoder(session.device, dtype_), tokenizer_, folder_.scheduler()},
        initial_(root.generate.initial_latents ? std::optional(load_latents(*root.generate.initial_latents))
                                               : std::nullopt) {
    check_sampling(model_, root.generate);
    check_initial_latents(model_, requests_.size(), root.generate, initial_);
    if (session.is_root()) warn_of_long_prompts();
  }

  std::size_t size() const { return requests_.size(); }
  const std::filesystem::path& out() const { return out_; }

  // Paints what is not there yet. Collective.
  void paint() {
    const auto digest = broadcast_from_root(world(), [&] {
      make_folder();
      return digest_of(folder_, root_.tokenizer);
    });
    const auto pictures = list_pictures(requests_, out_, model_, root_.generate, dtype_, digest, initial_);
    is_there_ = painted_flags(world(), pictures);
    on_root(world(), [&] { clear_folder(pictures); });
    if (root_.generate.save_latents) forget_what_is_there();
    const PictureUnits units{std::ssize(pictures), root_.generate.batch_size};
    const auto wanted = unfinished(units);
    std::vector<torch::Tensor> latents;  // of this rank's units
    for_each_unit(session_, units, wanted, "painting",
                  [&](std::int64_t begin, std::int64_t end) { paint_unit(pictures, begin, end, latents); });
    const auto all_latents = root_.generate.save_latents ? gather_rows(world(), units, latents) : torch::Tensor();
    on_root(world(), [&] {
      if (root_.generate.save_latents) save_latents(latents_file(), all_latents.view(latents_shape()));
      write_list(pictures);
      write_grid(pictures);
      tell_leftovers();
      if (!root_.generate.save_latents && !wanted.empty()) tell_old_latents();
    });
  }

  std::string summary() const {
    const auto kept = std::ranges::count(is_there_, 1);
    return fmt::format("{} images in {}{} ({}: {})\n", size(), out_.string(),
                       kept == 0 ? "" : fmt::format(", {} of them were there already", kept),
                       size() > grid_pictures ? fmt::format("the first {}", grid_pictures) : "all of them",
                       (out_ / "grid.png").string());
  }

 private:
  const Group& world() const { return session_.world.group(); }

  void make_folder() const {
    std::error_code error;
    std::filesystem::create_directories(out_, error);
    if (error) fail(Exit::io, "--out {}: {}", out_.string(), error.message());
  }

  void warn_of_long_prompts() const {
    std::vector<std::string> prompts;
    for (const auto& request : requests_) prompts.push_back(request.prompt);
    if (const auto complaint = complaint_about_long_prompts(tokenizer_, prompts)) log::warning("{}", *complaint);
  }

  // Of what an earlier command has left: whoever looks into the folder meanwhile, or behind a kill, finds this one's
  // list, and under its names no picture of another one.
  void clear_folder(std::span<const ListedPicture> pictures) const {
    if (std::ranges::count(is_there_, 0) == 0) return;
    std::error_code ignored;  // what cannot be removed cannot be written either
    for (std::size_t index = 0; index < pictures.size(); ++index)
      if (is_there_[index] == 0) std::filesystem::remove(pictures[index].file, ignored);
    std::filesystem::remove(out_ / "grid.png", ignored);
    write_list(pictures);
  }

  // The latents of all pictures are wanted, and those of earlier commands are gone.
  void forget_what_is_there() {
    const auto found = std::ranges::count(is_there_, 1);
    if (found > 0 && session_.is_root())
      log::info("generate.save_latents: the {} pictures that are there already are painted anew for their latents",
                found);
    std::ranges::fill(is_there_, 0);
  }

  // Another list was painted into the folder before. Whoever takes all its pictures should know.
  void tell_leftovers() const {
    const auto files = list_leftovers(out_, size());
    if (files.empty()) return;
    log::warning("{} pictures of another list are still in {}: {} to {}; images.jsonl does not name them", files.size(),
                 out_.string(), files.front().filename().string(), files.back().filename().string());
  }

  std::filesystem::path latents_file() const { return out_ / "latents.safetensors"; }

  void tell_old_latents() const {
    std::error_code ignored;
    if (std::filesystem::exists(latents_file(), ignored))
      log::warning(
          "{} is of an earlier command, and pictures were painted since; generate.save_latents=true makes it anew",
          latents_file().string());
  }

  std::vector<std::int64_t> latents_shape() const {
    auto shape = latent_shape(model_, root_.generate);
    shape.insert(shape.begin(), std::ssize(requests_));
    return shape;
  }

  std::vector<std::int64_t> unfinished(const PictureUnits& units) const {
    std::vector<std::int64_t> wanted;
    for (std::int64_t unit = 0; unit < units.count(); ++unit)
      if (std::any_of(is_there_.begin() + units.begin(unit), is_there_.begin() + units.end(unit),
                      [](auto there) { return there == 0; }))
        wanted.push_back(unit);
    return wanted;
  }

  // All of the unit, also where a part is there already: in its last bits a picture depends on those it is made with.
  void paint_unit(std::span<const ListedPicture> pictures, std::int64_t begin, std::int64_t end,
                  std::vector<torch::Tensor>& latents) {
    const auto first = static_cast<std::size_t>(begin);
    const auto requests = std::span(requests_).subspan(first, static_cast<std::size_t>(end - begin));
    std::optional<torch::Tensor> initial;
    if (initial_) initial = initial_->slice(0, begin, end);
    std::vector<torch::Tensor> rows;
    generate(model_, requests, root_.generate, initial, [&](const GeneratedImage& made) {
      const auto& picture = pictures[first + made.index];
      if (is_there_[first + made.index] == 0) write_png(picture.file, made.image, picture.text);
      if (root_.generate.save_latents) rows.push_back(made.latent.flatten());
    });
    if (root_.generate.save_latents) latents.push_back(torch::stack(rows));
  }

  void write_list(std::span<const ListedPicture> pictures) const {
    std::string lines;
    for (std::size_t index = 0; index < pictures.size(); ++index) {
      const auto& [request, file, text] = pictures[index];
      const nlohmann::ordered_json line = {{"index", index},
                                           {"file", file.filename().string()},
                                           {"prompt", request.prompt},
                                           {"negative_prompt", request.negative_prompt},
                                           {"seed", request.seed}};
      lines += dump_any(line) + "\n";
    }
    write_file_atomically(out_ / "images.jsonl", lines);
  }

  // Read back from the files, whichever rank has written them.
  void write_grid(std::span<const ListedPicture> pictures) const {
    std::vector<Image> images;
    std::vector<std::string> prompts;
    for (const auto& picture : pictures.first(std::min(pictures.size(), grid_pictures))) {
      images.push_back(read_image(picture.file));
      prompts.push_back(picture.request.prompt);
    }
    write_png(out_ / "grid.png", make_grid(images, prompts));
  }

  const Session& session_;
  const GenerateRoot& root_;
  const std::filesystem::path out_;
  const torch::Dtype dtype_;
  const std::vector<ImageRequest> requests_;
  PipelineFolder folder_;
  ClipTokenizer tokenizer_;
  ImageModel model_;
  std::optional<torch::Tensor> initial_;  // (N, C, h, w)
  std::vector<std::int64_t> is_there_;    // of each picture: whether an earlier command has made it
};

int run_generate(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded =
        load_config<GenerateRoot>(world, line, [](const auto& c, auto& report) { c.guard.check(report); });
    if (loaded.printed) return 0;
    const auto& root = loaded.root;
    const auto session = start_session(world, root.run.device, root.guard, root.threads);
    const auto generation = on_all(world.group(), [&] { return std::make_unique<Generation>(session, root, line); });
    if (line.dry_run) {
      if (session.is_root())
        say("dry run: nothing was written; {} images would go to {}\n", generation->size(), generation->out().string());
      return 0;
    }
    generation->paint();
    if (session.is_root()) print_out(generation->summary());
    return 0;
  });
}

}  // namespace

Command generate_command() {
  return {
      .name = "generate",
      .summary = "images from prompts",
      .usage = "--pipeline DIR (--prompt TEXT... | --prompts FILE) --out DIR [generate.KEY=VALUE]...",
      .options =
          {{"pipeline", "DIR", "diffusers folder"},
           {"prompt", "TEXT...", "the prompts, one image each", OptionSpec::Takes::many},
           {"prompts", "FILE", "a prompt a line, or .jsonl, .csv, .tsv with prompt, seed, negative_prompt"},
           {"out", "DIR",
            "00000.png..., grid.png, images.jsonl; what is there already and was made from the same is left alone"}},
      .run = run_generate,
      .schema = schema_of<GenerateRoot>,
      .heeds_signals = true,
      .on_ranks = true};
}

}  // namespace millrace
