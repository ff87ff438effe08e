#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// A file of a checkpoint, other than its manifest.
struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string digest;  // XXH3-128, hexadecimal

  bool holds_tensors() const { return name.ends_with(".safetensors"); }
};
// The form that they have in MANIFEST.json.
void to_json(nlohmann::json& json, const CheckpointFile& file);
void from_json(const nlohmann::json& json, CheckpointFile& file);

// A logical tensor, and the files its elements are in.
struct CheckpointTensor {
  struct Part {
    std::size_t file;         // index into the manifest's files
    std::int64_t begin, end;  // elements of the flattened tensor
  };

  std::vector<std::int64_t> shape;
  bool channels_last = false;  // a weight (O, I, H, W) is flattened in the order O, H, W, I
  std::vector<Part> parts;     // consecutive

  std::int64_t elements() const;
};

// MANIFEST.json, which makes a directory a checkpoint: its files with their digests, where each tensor lies in them,
// and everything about the run that is not a tensor.
struct CheckpointManifest {
  nlohmann::json json;  // all of it but the table of tensors
  std::vector<CheckpointFile> files;
  std::map<std::string, CheckpointTensor> tensors;  // by key, "KIND/NAME"

  // The text of a checkpoint's manifest, checked against its digest. Error(io).
  static std::string read(const std::filesystem::path& checkpoint);
  // The content of MANIFEST.xxh3, by which two manifests can be told apart. Error(io).
  static std::string read_digest(const std::filesystem::path& checkpoint);
  // Error(io) names what is missing, unknown or contradictory. `checkpoint` is for messages.
  static CheckpointManifest parse(std::string_view text, const std::filesystem::path& checkpoint);
  // Writes a manifest and its digest into a checkpoint that is being made, adding files, tensors and format to `json`.
  // Returns these two files.
  static std::vector<CheckpointFile> write(const std::filesystem::path& checkpoint, nlohmann::json json,
                                           const std::vector<CheckpointFile>& files,
                                           const std::map<std::string, CheckpointTensor>& tensors);

  static std::string key(const std::string& kind, const std::string& name) { return kind + "/" + name; }
  // Whether there are tensors of this kind.
  bool has(const std::string& kind) const;
};

}  // namespace millrace
