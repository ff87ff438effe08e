#pragma once
#include <torch/types.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launch/picture_units.h"
#include "millrace/comm/group.h"
#include "millrace/generate/generate.h"
#include "millrace/image/png_text.h"

// The pictures that a command paints into a folder: OUT/00000.png and so on. Each says in its text chunks what it was
// made from, so that the same command, started again, goes on.
namespace millrace {

struct ListedPicture {
  ImageRequest request;
  std::filesystem::path file;
  PngText text;
};

// One per request. `model_digest`: of all that the pipeline computes with. `initial_latents` (N, C, h, w) stand for the
// seeds.
std::vector<ListedPicture> list_pictures(std::span<const ImageRequest> requests, const std::filesystem::path& out,
                                         const ImageModel& model, const GenerateConfig& config, torch::Dtype dtype,
                                         const std::string& model_digest,
                                         const std::optional<torch::Tensor>& initial_latents);

// Whether its file is there, whole, and made from the same.
bool is_painted(const ListedPicture& picture);

// The files of another list that was painted into the folder before, by name: 00007.png and so on from `count` on, and
// numbers of another length than those of `count` pictures.
std::vector<std::filesystem::path> list_leftovers(const std::filesystem::path& out, std::size_t count);

// One flag per picture, the same on all ranks, which share the reading. Collective.
std::vector<std::int64_t> painted_flags(const Group& group, std::span<const ListedPicture> pictures);

}  // namespace millrace
