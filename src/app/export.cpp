#include "export.h"

#include "millrace/checkpoint/tensors.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/models/pipeline_folder.h"
#include "run/resume.h"

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
  const bool has_ema = checkpoint.has("ema");
  if (!has_ema && (wanted == Weights::ema || wanted == Weights::both))
    throw Error(Exit::usage, fmt::format("{} has no EMA", checkpoint.path().string()),
                "the run had ema.enabled=false: use weights=raw");
  if (wanted == Weights::automatic) wanted = has_ema ? Weights::ema : Weights::raw;
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

}  // namespace

void export_checkpoint(const ExportRequest& request) {
  const auto& checkpoint = request.checkpoint;
  const auto& manifest = checkpoint.manifest();
  const auto state = checkpoint.state();
  PipelineExport pipeline;
  pipeline.source = manifest.at("pipeline").get<std::string>();
  const auto source = PipelineFolder::open(pipeline.source);
  pipeline.card.title = "Trained with millrace";
  pipeline.card.facts = {{"steps", std::to_string(state.step)}, {"samples", std::to_string(state.samples)}};

  NewComponent component;
  component.config = manifest.at("model");
  component.weights = choose_weights(checkpoint, request.weights);
  const auto kind = manifest.at("kind").get<std::string>();
  if (kind == "vae") {
    component.config["scaling_factor"] =
        request.scaling_factor.value_or(component.config.value("scaling_factor", 0.18215));
    pipeline.replacements["vae"] = std::move(component);
  } else {
    const auto config = trained_config(checkpoint);
    const auto vae = AutoencoderKLConfig::from_json(source.config("vae"));
    pipeline.unet_sample_size = static_cast<int>(config.transform.resolution / vae.factor());
    pipeline.scheduler = trained_scheduler(source.scheduler(), config.objective);
    pipeline.replacements["unet"] = std::move(component);
  }
  write_pipeline(request.out, pipeline);
}

}  // namespace millrace
