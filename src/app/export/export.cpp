#include "export/export.h"

#include <fmt/ranges.h>

#include "millrace/checkpoint/tensors.h"
#include "millrace/config/config.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/models/ldm_config.h"
#include "millrace/models/ldm_export.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/weights.h"
#include "millrace/text/tokenizer.h"
#include "run/encoders.h"
#include "run/trained_run.h"

namespace millrace {
namespace {

Tensors read_all(const CheckpointReader& checkpoint, const std::string& kind) {
  Tensors tensors;
  CheckpointTensors held(checkpoint);
  for (const auto& name : checkpoint.names(kind)) tensors[name] = held.tensor(kind, name);
  return tensors;
}

// Variant -> tensors: the plain file is what loaders take by default.
std::map<std::string, Tensors> choose_weights(const CheckpointReader& checkpoint, ExportRequest::Weights wanted) {
  using Weights = ExportRequest::Weights;
  wanted = exported_weights(wanted, checkpoint.has("ema"), checkpoint.path(), "weights");
  log::info("exporting {} of step {}",
            wanted == Weights::raw   ? "the raw weights"
            : wanted == Weights::ema ? "the EMA weights"
                                     : "EMA as the plain file, raw weights as variant non_ema",
            checkpoint.state().step);
  std::map<std::string, Tensors> weights;
  weights[""] = read_all(checkpoint, wanted == Weights::raw ? "weights" : "ema");
  if (wanted == Weights::both) weights["non_ema"] = read_all(checkpoint, "weights");
  return weights;
}

// Programs that load the folder run its tokenizer by its files.
void warn_of_tokenizer(const TokenizerConfig& trained, const PipelineFolder& source) {
  const auto given = config::diff(config::dump_yaml(TokenizerConfig{}), trained);
  if (given.empty() || !source.has("tokenizer")) return;
  const auto& folder = source.component("tokenizer");
  const auto pad_id = [&](const TokenizerConfig& config) { return ClipTokenizer::load(folder, config).pad_id(); };
  if (trained.mode != TokenizerConfig::Mode::open_clip && pad_id(trained) == pad_id({})) return;
  std::string settings;
  for (const auto& change : given) settings += fmt::format(" tokenizer.{}={}", change.key, change.after);
  log::warning(
      "the run was trained with{}, and other programs run the folder's tokenizer by its files: its ids may be others; "
      "`millrace generate` and `evaluate --pipeline` take the same settings",
      settings);
}

AutoencoderKLConfig trained_vae(const CheckpointReader& checkpoint, ExportRequest::Weights weights) {
  auto json = checkpoint.manifest().at("model");
  json[scaling_factor_key] = scaling_factor_of(checkpoint, weights);
  return AutoencoderKLConfig::from_json(json);
}

PipelineFolder pipeline_of_request(const ExportRequest& request) {
  return pipeline_of(request.checkpoint, request.pipeline);
}

void check_parts_of_unet(const ExportRequest& request, const PipelineFolder& source) {
  if (is_of_vae(request.checkpoint)) return;
  check_encoders(request.checkpoint, source, request.allow_changes,
                 "put these back as they were, or say allow_changes=true to export with what is there now");
}

// One config.json has room for one.
void warn_of_second_scaling_factor(const ExportRequest& request) {
  using Weights = ExportRequest::Weights;
  if (request.weights != Weights::both) return;
  const double of_ema = scaling_factor_of(request.checkpoint);
  const double of_raw = scaling_factor_of(request.checkpoint, Weights::raw);
  if (of_ema != of_raw)
    log::warning("{}: scaling_factor {} is that of the EMA; the variant non_ema wants {}", request.out.string(), of_ema,
                 of_raw);
}

// What the run did not train is its pipeline's.
LdmModel describe_model(const ExportRequest& request, const PipelineFolder& source) {
  const auto& checkpoint = request.checkpoint;
  const bool is_vae = is_of_vae(checkpoint);
  return {UNet2DConditionConfig::from_json(is_vae ? source.config("unet") : checkpoint.manifest().at("model")),
          is_vae ? trained_vae(checkpoint, request.weights) : AutoencoderKLConfig::from_json(source.config("vae")),
          CLIPTextConfig::from_json(source.config("text_encoder")),
          is_vae ? source.scheduler() : trained_scheduler(source.scheduler(), trained_config(checkpoint).objective)};
}

fs::path config_beside(fs::path file) {
  return file.replace_extension(".yaml");
}

// Readers take what a file cannot tell for that of Stable Diffusion.
void write_config_beside(const fs::path& file, const LdmModel& model) {
  if (model.scheduler.rescale_betas_zero_snr || model.scheduler.beta_schedule != BetaSchedule::scaled_linear ||
      !model.scheduler.trained_betas.empty())
    log::warning("readers of such a file do not know the noise schedule of this run; a diffusers folder tells it");
  const auto untold = list_settings_readers_guess(model);
  auto wordless = list_settings_without_yaml_key(model);
  const auto yaml = find_ldm_config(model);
  if (!yaml) wordless.insert(wordless.begin(), untold.begin(), untold.end());
  if (yaml && !untold.empty()) {
    write_file_atomically(config_beside(file), *yaml);
    log::info("{} tells readers what such a file cannot: {}", config_beside(file).string(), fmt::join(untold, ", "));
  }
  if (!wordless.empty())
    log::warning("{} cannot tell, and no .yaml has words for such a network: {}; set it in the program that reads it",
                 file.string(), fmt::join(wordless, ", "));
}

void export_ldm(const ExportRequest& request) {
  const auto& checkpoint = request.checkpoint;
  if (request.weights == ExportRequest::Weights::both)
    fail(Exit::usage, "--format ldm: one file has room for one U-Net: weights=ema or weights=raw");
  for (const auto& file : {request.out, config_beside(request.out)})
    if (fs::exists(file)) fail(Exit::usage, "--out {}: is there already", file.string());
  const auto source = pipeline_of_request(request);
  check_parts_of_unet(request, source);
  const auto model = describe_model(request, source);
  const auto trained = choose_weights(checkpoint, request.weights).at("");
  const bool is_vae = is_of_vae(checkpoint);
  std::error_code told_by_writing;
  fs::create_directories(request.out.parent_path(), told_by_writing);
  const auto load_unet = [&] { return weights_of(*source.load_unet(torch::kCPU, torch::kFloat32)); };
  const auto load_vae = [&] { return weights_of(*source.load_vae(torch::kCPU, torch::kFloat32)); };
  write_ldm_checkpoint(
      request.out, ldm_unet(model.unet, is_vae ? load_unet() : trained),
      ldm_vae(model.vae, is_vae ? trained : load_vae()),
      ldm_text_encoder(model.text_encoder, weights_of(*source.load_text_encoder(torch::kCPU, torch::kFloat32))));
  write_config_beside(request.out, model);
}

}  // namespace

ExportRequest::Weights exported_weights(ExportRequest::Weights wanted, bool has_ema, const fs::path& checkpoint,
                                        const char* key) {
  using Weights = ExportRequest::Weights;
  if (!has_ema && (wanted == Weights::ema || wanted == Weights::both))
    throw Error(Exit::usage, fmt::format("{} has no EMA", checkpoint.string()),
                fmt::format("the run had ema.enabled=false: use {}=raw", key));
  return wanted != Weights::automatic ? wanted : has_ema ? Weights::ema : Weights::raw;
}

ExportKind export_kind(const CheckpointReader& checkpoint, const std::optional<std::string>& moved_pipeline) {
  if (!is_of_vae(checkpoint)) return ExportKind::pipeline;
  return find_missing_part(pipeline_of(checkpoint, moved_pipeline)) ? ExportKind::vae : ExportKind::pipeline;
}

double scaling_factor_of(const CheckpointReader& checkpoint, ExportRequest::Weights weights) {
  const auto& manifest = checkpoint.manifest();
  const auto find = [&](const char* key) -> std::optional<double> {
    const auto value = manifest.find(key);
    return value != manifest.end() && value->is_number() ? std::optional(value->get<double>()) : std::nullopt;
  };
  const bool is_raw = weights == ExportRequest::Weights::raw;
  if (const auto of_raw = find(scaling_factor_raw_key); is_raw && of_raw) return *of_raw;
  if (const auto known = find(scaling_factor_key)) {
    if (is_raw && checkpoint.has("ema"))
      log::warning("{} tells the scaling_factor of its EMA alone: {} is written, and the raw weights' may be another",
                   checkpoint.path().string(), *known);
    return *known;
  }
  const double before = AutoencoderKLConfig::from_json(manifest.at("model")).scaling_factor;
  log::warning("{} does not tell its scaling_factor: that of the VAE that the run began with, {}, is written",
               checkpoint.path().string(), before);
  return before;
}

// Of a U-Net that training began with: how diffusers' EMAModel had averaged it, which is over.
static nlohmann::json without_average(nlohmann::json config) {
  for (const char* key :
       {"decay", "inv_gamma", "min_decay", "optimization_step", "power", "update_after_step", "use_ema_warmup"})
    config.erase(key);
  return config;
}

void export_checkpoint(const ExportRequest& request) {
  if (request.format == ExportRequest::Format::ldm) return export_ldm(request);
  const auto& checkpoint = request.checkpoint;
  const auto state = checkpoint.state();
  NewComponent component;
  component.config = without_average(checkpoint.manifest().at("model"));
  const bool is_vae = is_of_vae(checkpoint);
  if (!is_vae) check_parts_of_unet(request, pipeline_of_request(request));
  component.weights = choose_weights(checkpoint, request.weights);
  if (is_vae) {
    component.config[scaling_factor_key] = scaling_factor_of(checkpoint, request.weights);
    warn_of_second_scaling_factor(request);
  }
  if (export_kind(checkpoint, request.pipeline) == ExportKind::vae)
    return write_component_folder(request.out, "vae", component);

  const auto source = pipeline_of_request(request);
  PipelineExport pipeline;
  pipeline.source = source.path();
  pipeline.card.title = "Trained with millrace";
  pipeline.card.facts = {{"steps", std::to_string(state.step)}, {"samples", std::to_string(state.samples)}};
  if (is_vae) {
    pipeline.replacements["vae"] = std::move(component);
  } else {
    const auto config = trained_config(checkpoint);
    const auto vae = AutoencoderKLConfig::from_json(source.config("vae"));
    pipeline.unet_sample_size = static_cast<int>(vae.latent_side(config.transform.resolution));
    pipeline.scheduler = trained_scheduler(source.scheduler(), config.objective);
    warn_of_tokenizer(config.tokenizer, source);
    pipeline.replacements["unet"] = std::move(component);
  }
  write_pipeline(request.out, pipeline);
}

}  // namespace millrace
