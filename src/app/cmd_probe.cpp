// probe: one part of the program on given tensors, so that anyone can compare it with a reference.
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "app_config.h"
#include "command.h"
#include "launch/threads.h"
#include "load_config.h"
#include "millrace/core/files.h"
#include "millrace/image/decode.h"
#include "millrace/image/transform.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/tensors.h"
#include "millrace/nn/device.h"
#include "millrace/nn/torch_error.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

using TensorMap = std::map<std::string, torch::Tensor>;

struct ProbeConfig {
  struct Run : DeviceConfig {
    std::uint64_t seed = 420;
    void describe(config::Section& section) {
      DeviceConfig::describe(section);
      section.key("seed", seed, "of random crop and flip");
    }
  } run;
  PrecisionConfig model;
  struct Data {
    ImageConfig images;
    void describe(config::Section& section) {
      section.section("images", images, "how the file is read");
      section.ignore_rest_of<DataConfig>();
    }
  } data;
  TransformConfig transform;
  config::Auto<int> threads{};

  void describe(config::Section& section) {
    section.section("run", run, "where it runs");
    section.section("model", model, "arithmetic");
    section.section("data", data, "for --component transform");
    section.section("transform", transform, "for --component transform");
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

torch::Tensor input(const TensorMap& inputs, const std::string& name, const std::string& file) {
  const auto found = inputs.find(name);
  if (found == inputs.end()) fail(Exit::io, "{} has no tensor \"{}\"", file, name);
  return found->second;
}

// A number with a fraction is no token.
torch::Tensor token_ids(const TensorMap& inputs, const std::string& file) {
  const auto ids = input(inputs, "ids", file);
  if (!at::isIntegralType(ids.scalar_type(), /*includeBool=*/false))
    fail(Exit::io, "{}: \"ids\" is of {}, and has to be of integers", file, ids.dtype().name());
  return ids.to(torch::kInt64);
}

// With `target`: also the mean squared error and its gradient for every parameter.
TensorMap probe_unet(const PipelineFolder& folder, const TensorMap& inputs, const std::string& file,
                     torch::Device device, torch::Dtype dtype) {
  auto unet = folder.load_unet(device, dtype);
  const bool with_gradients = inputs.contains("target");
  for (auto& parameter : unet->parameters()) parameter.requires_grad_(with_gradients);
  const auto output =
      unet->forward(input(inputs, "sample", file).to(device, dtype), input(inputs, "timestep", file).to(device),
                    input(inputs, "encoder_hidden_states", file).to(device, dtype));
  TensorMap results = {{"output", output}};
  if (!with_gradients) return results;
  const auto loss = torch::mse_loss(output.to(torch::kFloat32), inputs.at("target").to(device, torch::kFloat32));
  loss.backward();
  results["loss"] = loss;
  for (const auto& parameter : unet->named_parameters())
    results["grad." + parameter.key()] =
        parameter.value().grad().defined() ? parameter.value().grad() : torch::zeros_like(parameter.value());
  return results;
}

TensorMap run_component(const std::string& component, const PipelineFolder& folder, const TensorMap& inputs,
                        const std::string& file, torch::Device device, torch::Dtype dtype) {
  if (component == "unet") return probe_unet(folder, inputs, file, device, dtype);
  torch::NoGradGuard guard;
  if (component == "vae-encode")
    return {{"moments", folder.load_vae(device, dtype)->encode(input(inputs, "image", file).to(device, dtype))}};
  if (component == "vae-decode")
    return {{"image", folder.load_vae(device, dtype)->decode(input(inputs, "latent", file).to(device, dtype))}};
  return {{"hidden", folder.load_text_encoder(device, dtype)->forward(token_ids(inputs, file).to(device))}};
}

// Of other widths than the network's, say.
TensorMap run_component_on(const std::string& component, const PipelineFolder& folder, const std::string& file,
                           torch::Device device, torch::Dtype dtype) {
  const auto inputs = read_tensors(file);
  try {
    return run_component(component, folder, inputs, file, device, dtype);
  } catch (const c10::Error& refused) {
    if (const auto error = present_torch_error(); !error || error->exit() != Exit::bug) throw;
    fail(Exit::io, "--input {}: {} does not take it: {}", file, component, refused.what_without_backtrace());
  }
}

TensorMap probe_transform(const CommandLine& line, const ProbeConfig& config) {
  const auto path = line.get("image");
  Image decoded;
  if (const auto failure =
          decode_image_into(decoded, read_file(path), config.data.images, {{}, config.transform.resolution}))
    fail(Exit::io, "{}: {}: {}", path, to_string(failure->error), failure->detail);
  const auto image = transform_image(decoded, config.transform, {config.run.seed, hash64(path), 0});
  auto tensor = torch::empty({image.height, image.width, 3}, torch::kUInt8);
  std::copy(image.pixels.begin(), image.pixels.end(), tensor.data_ptr<std::uint8_t>());
  return {{"image", tensor}};
}

int run_probe(const CommandLine& line) {
  const auto loaded = load_config<ProbeConfig>(line);
  if (loaded.printed) return 0;
  if (loaded.root.threads.value) use_threads(*loaded.root.threads.value);
  const auto component = line.get("component");
  const auto output = line.get("output");
  TensorMap results;
  if (component == "transform") {
    results = probe_transform(line, loaded.root);
  } else if (component == "unet" || component == "vae-encode" || component == "vae-decode" || component == "text") {
    const auto device = resolve_device(loaded.root.run.device);
    const auto file = line.get("input");
    results = run_component_on(component, PipelineFolder::open(line.get("pipeline")), file, device,
                               parse_dtype(loaded.root.model.dtype, device));
  } else {
    fail(Exit::usage, "--component {}: unet, vae-encode, vae-decode, text or transform", component);
  }
  for (auto& [name, tensor] : results) {
    tensor = tensor.detach().cpu();
    if (tensor.is_floating_point()) tensor = tensor.to(torch::kFloat32);
  }
  if (line.dry_run) {
    say("dry run: nothing was written; {} tensors would go to {}\n", results.size(), output);
    return 0;
  }
  write_tensors(output, results);
  return 0;
}

}  // namespace

Command probe_command() {
  return {
      .name = "probe",
      .summary = "runs one part on given tensors, for comparisons",
      .usage =
          "--component unet|vae-encode|vae-decode|text|transform --pipeline DIR --input F.safetensors --output "
          "G.safetensors",
      .options =
          {{"component", "NAME",
            "unet (sample, timestep, encoder_hidden_states [, target]), vae-encode (image), vae-decode (latent), text "
            "(ids), transform"},
           {"pipeline", "DIR", "diffusers folder, or that of the component alone"},
           {"input", "FILE", "safetensors with the inputs"},
           {"image", "FILE", "transform: a JPEG, PNG or WebP file"},
           {"output", "FILE", "safetensors with the results"}},
      .run = run_probe,
      .schema = schema_of<ProbeConfig>};
}

}  // namespace millrace
