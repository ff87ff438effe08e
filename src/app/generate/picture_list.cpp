#include "generate/picture_list.h"

#include <algorithm>
#include <cctype>

#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

constexpr const char* program_keyword = "Software";

// All names are equally long, so that their order by bytes is that of the prompts.
std::size_t digits_of_names(std::size_t count) {
  return std::max(std::size_t{5}, std::to_string(count - 1).size());
}

std::string digest_of(const torch::Tensor& latent) {
  const auto values = latent.contiguous();
  return hash128({static_cast<const char*>(values.const_data_ptr()), values.nbytes()}).hex();
}

}  // namespace

std::vector<ListedPicture> list_pictures(std::span<const ImageRequest> requests, const std::filesystem::path& out,
                                         const ImageModel& model, const GenerateConfig& config, torch::Dtype dtype,
                                         const std::string& model_digest,
                                         const std::optional<torch::Tensor>& initial_latents) {
  const auto [height, width] = picture_size(model, config);
  const PngText common = {{"steps", std::to_string(config.steps)},
                          {"sampler", to_string(scheduler_of(model, config).scheduler_class)},
                          {"guidance_scale", fmt::format("{}", config.guidance_scale)},
                          {"guidance_rescale", fmt::format("{}", config.guidance_rescale)},
                          {"size", fmt::format("{}x{}", width, height)},
                          {"model", model_digest},
                          {"dtype", dtype_name(dtype)},
                          {program_keyword, "millrace " MILLRACE_VERSION}};
  const auto digits = digits_of_names(requests.size());
  std::vector<ListedPicture> pictures;
  for (const auto& request : requests) {
    const auto index = std::ssize(pictures);
    auto text = common;
    text["prompt"] = request.prompt;
    text["negative_prompt"] = request.negative_prompt;
    if (initial_latents) {
      text["initial_latent"] = digest_of((*initial_latents)[index]);
    } else {
      text["seed"] = std::to_string(request.seed);
    }
    pictures.push_back({request, out / fmt::format("{:0{}d}.png", index, digits), std::move(text)});
  }
  return pictures;
}

bool is_painted(const ListedPicture& picture) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(picture.file, ignored)) return false;
  auto found = read_png_text(read_file(picture.file));
  if (!found) return false;
  (*found)[program_keyword] = picture.text.at(program_keyword);  // of an older version: as good
  return *found == picture.text;
}

std::vector<std::filesystem::path> list_leftovers(const std::filesystem::path& out, std::size_t count) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : list_folder(out, ignored)) {
    const auto stem = entry.path().stem().string();
    const bool is_number = stem.size() >= 5 && stem.size() < 19 &&
                           std::ranges::all_of(stem, [](unsigned char c) { return std::isdigit(c); });
    if (!is_number || entry.path().extension() != ".png") continue;
    const bool is_own = stem.size() == digits_of_names(count) && std::stoull(stem) < count;
    if (!is_own) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

std::vector<std::int64_t> painted_flags(const Group& group, std::span<const ListedPicture> pictures) {
  std::vector<std::int64_t> flags(pictures.size(), 0);
  on_all(group, [&] {
    for (auto i = static_cast<std::size_t>(group.rank()); i < pictures.size();
         i += static_cast<std::size_t>(group.size()))
      flags[i] = is_painted(pictures[i]);
  });
  group.all_reduce_max(std::span(flags));
  return flags;
}

}  // namespace millrace
