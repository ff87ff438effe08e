#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <regex>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/json.h"
#include "millrace/io/weights.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/text/tokenizer.h"
#include "model_index.h"

namespace millrace {

namespace {

using nlohmann::json;

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().filename().string());
  }
  std::ranges::sort(files);
  return files;
}

// The variants of the weight files, "" for the plain ones.
std::set<std::string> variants_in(const std::vector<std::string>& files, std::string_view stem) {
  const std::regex pattern(fmt::format(R"({}(?:\.(\w+))?(?:-\d+-of-\d+)?\.safetensors)", stem));
  std::set<std::string> variants;
  for (const std::string& file : files) {
    std::smatch parts;
    if (std::regex_match(file, parts, pattern)) variants.insert(parts[1]);
  }
  return variants;
}

std::string word(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    default:
      return to_string(dtype);
  }
}

// Counts numbers and collects element types from the headers.
void describe_weights(const Weights& weights, json& out) {
  std::int64_t parameters = 0;
  std::set<std::string> dtypes;
  std::size_t tensors = 0;
  for (const std::string& name : weights.names()) {
    if (name.ends_with("position_ids")) continue;
    const TensorInfo& info = weights.info(name);
    parameters += c10::multiply_integers(info.shape);
    dtypes.insert(word(info.dtype));
    ++tensors;
  }
  out["parameters"] = parameters;
  out["tensors"] = tensors;
  out["dtype"] = dtypes.size() == 1 ? *dtypes.begin() : "mixed";
}

// A network of the shape that config.json tells, whatever the pipeline's class; its memory is never touched.
std::shared_ptr<torch::nn::Module> empty_module(const PipelineFolder& pipeline, std::string_view name) {
  const std::string file = (pipeline.component(name) / "config.json").string();
  const json config = read_json_object(file);
  if (name == "unet") return std::make_shared<UNet2DConditionModelImpl>(UNet2DConditionConfig::from_json(config, file));
  if (name == "vae") return std::make_shared<AutoencoderKLImpl>(AutoencoderKLConfig::from_json(config, file));
  return std::make_shared<CLIPTextModelImpl>(CLIPTextConfig::from_json(config, file));
}

void inspect_network(const PipelineFolder& pipeline, const std::string& name, json& out, json& problems) {
  const fs::path& folder = pipeline.component(name);
  const std::string_view stem = weights_stem(name);
  const auto variants = variants_in(out.at("files").get<std::vector<std::string>>(), stem);
  const std::string shown = variants.empty() || variants.contains("") ? "" : *variants.begin();
  describe_weights(open_weights(folder, stem, shown), out);
  out["variants"] = variants;
  const auto module = empty_module(pipeline, name);
  for (const std::string& variant : variants) {
    for (const std::string& problem : weight_problems(*module, folder, stem, variant)) {
      problems.push_back(fmt::format("{}{}{}: {}", name, variant.empty() ? "" : " ", variant, problem));
    }
  }
  refuse_non_finite_weights(folder);
}

std::string class_of(const PipelineFolder& pipeline, const std::string& name) {
  if (name == "scheduler") return pipeline.scheduler().class_name();
  if (const auto listed = pipeline.index().find(name); listed != pipeline.index().end()) return listed->at(1);
  if (name == "tokenizer") return "CLIPTokenizer";
  return name == "text_encoder" ? "CLIPTextModel" : pipeline.config(name).at("_class_name").get<std::string>();
}

json inspect_component(const PipelineFolder& pipeline, const std::string& name, json& problems) {
  json out = {{"files", files_in(pipeline.component(name))}};
  try {
    out["class"] = class_of(pipeline, name);
    if (name == "scheduler") out["prediction_type"] = to_string(pipeline.scheduler().prediction);
    if (name == "tokenizer") out["tokens"] = ClipTokenizer::load(pipeline.component(name)).vocabulary_size();
    if (std::ranges::count(pipeline_networks, name) > 0) inspect_network(pipeline, name, out, problems);
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  return out;
}

// What diffusers would miss: components that model_index.json lists, and those without which there is no pipeline.
void find_missing(const PipelineFolder& pipeline, json& problems) {
  std::set<std::string> wanted(needed_components.begin(), needed_components.end());
  for (const auto& [name, entry] : pipeline.index().items()) {
    if (is_listed(entry)) wanted.insert(name);
  }
  for (const std::string& name : wanted) {
    if (!pipeline.has(name)) problems.push_back(fmt::format("{} has no part {}", pipeline.path().string(), name));
  }
}

}  // namespace

json inspect_pipeline(const fs::path& path) {
  const PipelineFolder pipeline = PipelineFolder::open(path);
  json problems = json::array(), components = json::object();
  if (!pipeline.index().is_null()) find_missing(pipeline, problems);
  for (const auto& [name, folder] : pipeline.components()) {
    components[name] = inspect_component(pipeline, name, problems);
  }
  return {{"kind", "pipeline"}, {"components", components}, {"problems", problems}};
}

}  // namespace millrace
