#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/io/safetensors.h"

// The weights of one component of a diffusers or transformers folder, however they are packed.
namespace millrace {

// How weight files are called: diffusers' parts (U-Net, VAE) and transformers' (text encoder).
inline constexpr std::string_view diffusers_stem = "diffusion_pytorch_model";
inline constexpr std::string_view transformers_stem = "model";
constexpr std::string_view weights_stem(std::string_view component) {
  return component == "text_encoder" ? transformers_stem : diffusers_stem;
}

// The file (or the index of the sharded files) that holds the weights called `stem` in `folder`: of both, as their
// libraries do, diffusers' index and transformers' file; with the variant's old and new spellings. Nothing when neither
// exists; a folder that holds pickled weights only is refused with the way to convert them.
std::optional<fs::path> try_find_weights(const fs::path& folder, std::string_view stem, std::string_view variant = {});

// Tensors by name over one or several safetensors files.
class Weights {
 public:
  explicit Weights(const fs::path& file_or_index);

  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const { return file_of_.contains(name); }
  const TensorInfo& info(std::string_view name) const;  // Error(io) naming path and tensor when absent
  // All bytes of a tensor into `out`, which is as large.
  void read(std::string_view name, std::span<std::byte> out) const { find(name).read(info(name), out); }
  std::vector<std::byte> bytes(std::string_view name) const { return find(name).bytes(name); }
  const fs::path& file_of(std::string_view name) const;

 private:
  const SafetensorsFile& find(std::string_view name) const;
  void add(const fs::path& file);

  fs::path path_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;  // tensor name -> position in files_
};

// try_find_weights + Weights; Error(io) saying which names were looked for when there is none.
Weights open_weights(const fs::path& folder, std::string_view stem, std::string_view variant = {});

}  // namespace millrace
