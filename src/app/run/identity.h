#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/config/config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

// What makes a run the run that it is. Every checkpoint has it in its manifest, so that a restart can tell whether it
// still is the same run.
struct RunIdentity {
  enum class Kind { unet, vae };  // the network that is trained

  Kind kind = Kind::unet;
  std::string config_yaml = {};  // resolved
  TrainConfig config = {};       // the same, as far as it can be read; of a VAE's run the keys that both kinds know
  nlohmann::json data = {};      // {"manifest": digest of the archives, "archives": their number, "stripes"}
  nlohmann::json model = {};     // config.json of the network
  std::string pipeline = {};     // folder that it began with
  // Beside the network: digests of the weights that encode, how latents are scaled, how noise is made (run/encoders.h).
  nlohmann::json encoders = {};  // null: unknown, or nothing of that
  // Digests of where the archives lie, as spelled and behind links; none where names and sizes tell whether they are
  // the same ones, and in old checkpoints.
  struct DataPaths {
    std::string spelled, resolved;
  };
  std::optional<DataPaths> paths = {};

  nlohmann::json to_json() const;
  static RunIdentity from_manifest(const nlohmann::json& manifest);
};

// Of the run that is about to start. `pipeline`: model.pipeline.
RunIdentity make_identity(RunIdentity::Kind kind, const std::string& config_yaml, const DataPlan& data,
                          const nlohmann::json& model, const std::filesystem::path& pipeline,
                          const nlohmann::json& encoders = nullptr);

// The part that decides how large losses usually are, beside the settings (TrainConfig::loop): rows, network, encoders
// and noise, wherever they lie.
nlohmann::json identity_of_losses(const RunIdentity& identity);

// Whether a key that changed still means the same: data.stripes=auto and the number that it stood for, for example.
bool means_the_same(const config::Change& change, const RunIdentity& before, const RunIdentity& now);

// Whether names and sizes tell that archives which lie elsewhere now are the same ones.
bool may_have_moved(const RunIdentity& identity, const Manifest& archives);
// Whether the archives lie elsewhere now; nothing where that is not known of either run.
std::optional<bool> lie_elsewhere(const RunIdentity& before, const RunIdentity& now);
// Why the digest of the data is not `before` any more, in words. Reads the archives.tsv of the checkpoint's run.
std::vector<std::string> data_changes(const CheckpointReader& checkpoint, const std::string& before,
                                      const Manifest& archives);

// How the networks differ, key by key of their config.json.
std::vector<std::string> model_changes(const RunIdentity& before, const RunIdentity& now);
// Whether the checkpoint holds exactly the tensors of this identity's network.
bool holds_network(const CheckpointReader& checkpoint, const RunIdentity& identity);

}  // namespace millrace
