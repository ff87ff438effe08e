#include "millrace/io/weights.h"

#include <fmt/ranges.h>

#include <set>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/json.h"

namespace millrace {

namespace {

constexpr std::string_view index_suffix = ".json";

// Names of an index, the current spelling first: diffusers moved the variant behind "index" and before the suffix.
std::vector<std::string> index_names(std::string_view stem, std::string_view variant) {
  if (variant.empty()) return {fmt::format("{}.safetensors.index.json", stem)};
  return {fmt::format("{}.safetensors.index.{}.json", stem, variant),
          fmt::format("{}.safetensors.{}.index.json", stem, variant),
          fmt::format("{}.{}.safetensors.index.json", stem, variant)};
}

std::vector<std::string> candidates(std::string_view stem, std::string_view variant) {
  auto names = index_names(stem, variant);
  const bool file_first = stem == transformers_stem;
  names.insert(file_first ? names.begin() : names.end(),
               variant.empty() ? fmt::format("{}.safetensors", stem) : fmt::format("{}.{}.safetensors", stem, variant));
  return names;
}

void refuse_pickle(const fs::path& folder, std::string_view stem, std::string_view variant) {
  const std::string dotted = variant.empty() ? "" : fmt::format(".{}", variant);
  for (const std::string_view old_stem : {stem, std::string_view("pytorch_model")}) {
    for (const std::string_view ending : {".bin", ".bin.index.json"}) {
      const fs::path pickle = folder / fmt::format("{}{}{}", old_stem, dotted, ending);
      if (!fs::exists(pickle)) continue;
      throw Error(
          Exit::io,
          fmt::format("{} holds pickled weights, which can run code when loaded: only safetensors is read",
                      pickle.string()),
          "convert once: python -c \"from diffusers import DiffusionPipeline as P; "
          "P.from_pretrained('OLD').save_pretrained('NEW')\"; a model of its own the same way by its class, such "
          "as transformers' CLIPModel");
    }
  }
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

// name -> file, from {"metadata": {...}, "weight_map": {name: file}}.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const nlohmann::json json = read_json(index);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    fail(Exit::io, "{} has no weight_map", index.string());
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
      fail(Exit::io, "{}: '{}' is not in a file of this folder", index.string(), name);
    }
    files.emplace(name, file.get<std::string>());
  }
  return files;
}

}  // namespace

std::optional<fs::path> try_find_weights(const fs::path& folder, std::string_view stem, std::string_view variant) {
  for (const std::string& name : candidates(stem, variant)) {
    if (fs::exists(folder / name)) return folder / name;
  }
  refuse_pickle(folder, stem, variant);
  return std::nullopt;
}

Weights::Weights(const fs::path& file_or_index) : path_(file_or_index) {
  if (!path_.string().ends_with(index_suffix)) {
    add(path_);
    return;
  }
  const auto weight_map = read_weight_map(path_);
  std::set<std::string> files;
  for (const auto& [name, file] : weight_map) files.insert(file);
  for (const std::string& file : files) add(path_.parent_path() / file);
  for (const auto& [name, file] : weight_map) {
    if (!contains(name) || file_of(name).filename() != file) {
      fail(Exit::io, "{} says that '{}' is in {}, but it is not", path_.string(), name, file);
    }
  }
}

void Weights::add(const fs::path& file) {
  files_.emplace_back(file);
  for (const TensorInfo& tensor : files_.back().tensors()) {
    const auto [at, is_new] = file_of_.emplace(tensor.name, files_.size() - 1);
    if (!is_new)
      fail(Exit::io, "'{}' is both in {} and in {}", tensor.name, files_[at->second].path().string(), file.string());
  }
}

std::vector<std::string> Weights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& Weights::find(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) fail(Exit::io, "{} holds no tensor '{}'", path_.string(), name);
  return files_[found->second];
}

const TensorInfo& Weights::info(std::string_view name) const {
  return find(name).info(name);
}

const fs::path& Weights::file_of(std::string_view name) const {
  return find(name).path();
}

// STEM.fp16.safetensors, STEM.fp16-00001-of-00002.safetensors or the like; empty where there is none.
static std::string other_variant(const fs::path& folder, std::string_view stem) {
  std::error_code error;
  for (const auto& entry : list_folder(folder, error)) {
    auto name = entry.path().filename().string();
    const bool is_plain = name == fmt::format("{}.safetensors", stem);
    if (!is_plain && name.starts_with(fmt::format("{}.", stem)) && name.ends_with(".safetensors")) return name;
  }
  return "";
}

Weights open_weights(const fs::path& folder, std::string_view stem, std::string_view variant) {
  const auto found = try_find_weights(folder, stem, variant);
  if (!found) {
    const auto other = other_variant(folder, stem);
    if (!other.empty())
      throw Error(Exit::io, fmt::format("{} holds only a variant of its weights, {}", folder.string(), other),
                  other.find("-of-") == other.npos
                      ? fmt::format("name it {}.safetensors, or save it without variant=", stem)
                      : "save it without variant=");
    throw Error(Exit::io, fmt::format("no weights in {}", folder.string()),
                fmt::format("looked for {}", fmt::join(candidates(stem, variant), ", ")));
  }
  return Weights(*found);
}

}  // namespace millrace
