#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/reader.h"
#include "millrace/config/config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"

// What makes a run the run that it is, and what two of them differ in. The one of before is a checkpoint's manifest.
namespace millrace {

// What goes into every checkpoint of a run, so that a restart can tell whether it is still the same run. `kind` = unet
// or vae, `model` = its config.json, `encoders` = what else of the pipeline it was trained with: digests of weights
// that encode, and what latents are scaled and noise is made by; null where there is nothing of that.
nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline,
                            const nlohmann::json& encoders = nullptr);

// What of it decides how large losses usually are, beside the settings (TrainConfig::loop): rows, network, and what
// encodes and adds noise, wherever they lie.
nlohmann::json identity_of_losses(const nlohmann::json& identity);

// Whether a key that is spelled in another way means what it meant.
bool means_the_same(const config::Change& change, const nlohmann::json& before, const nlohmann::json& after);

// Archives that lie elsewhere now are the same ones when their names and sizes are, which the digest of the data says.
bool may_have_moved(const nlohmann::json& identity, const Manifest& archives);
// Whether those of which that cannot be told lie elsewhere, however they are spelled; nothing where a checkpoint of
// before does not say where they lay.
std::optional<bool> lie_elsewhere(const nlohmann::json& was, const nlohmann::json& is);
// What made another digest of the data than `before`, in words.
std::vector<std::string> data_changes(const CheckpointReader& checkpoint, const std::string& before,
                                      const Manifest& archives);

// Of two config.json, key by key.
std::vector<std::string> model_changes(const nlohmann::json& was, const nlohmann::json& is);
// Whether the network of this identity has the tensors that the checkpoint holds.
bool holds_network(const CheckpointReader& checkpoint, const nlohmann::json& identity);

}  // namespace millrace
