#include "millrace/train/picture_painter.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "eval_mode.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/phase.h"

namespace millrace {

PicturePainter::PicturePainter(UNet2DConditionModel unet, AutoencoderKL vae, torch::Tensor text, Options options)
    : unet_(std::move(unet)), vae_(std::move(vae)), text_(std::move(text)), options_(std::move(options)) {
  const auto pictures = std::ssize(options_.prompts);
  ensure(text_.size(0) == (options_.sampling.is_guided() ? 2 : 1) * pictures, "embeddings of every prompt");
}

// A trainer that fails between two questions asks the next one with all others, then all hear of its error.
torch::Tensor PicturePainter::paint(const Group& trainers, const std::function<bool(bool)>& gives_up) {
  bool is_asking = false, is_over = false;
  const auto ask = [&](bool has_failed) {
    is_asking = true;
    is_over = gives_up(has_failed);
    is_asking = false;
    return is_over;
  };
  std::string mine;
  std::optional<Error> error;
  try {
    mine = own_latents(trainers, [&] { return ask(false); });
  } catch (...) {
    if (is_asking || options_.forward_is_collective) throw;
    error = present_error();
  }
  if (!is_over) ask(error.has_value());
  agree(trainers, error);
  if (is_over) return {};
  std::string all;
  for (const auto& part : trainers.gather_strings(mine)) all += part;
  if (!trainers.is_root()) return {};
  std::vector<std::int64_t> shape = options_.latent_shape;
  shape.insert(shape.begin(), std::ssize(options_.prompts));
  const auto latents = torch::empty(shape, torch::kFloat32);
  ensure(all.size() == latents.nbytes(), "the latents of every picture");
  std::memcpy(latents.data_ptr(), all.data(), all.size());
  return latents;
}

// Of this trainer's share. Where forward is collective every trainer must call it equally often: all have shares of one
// size, and those at the end repeat the last picture.
std::string PicturePainter::own_latents(const Group& trainers, const std::function<bool()>& gives_up) {
  const EvalMode eval_mode(*unet_);
  const auto pictures = std::ssize(options_.prompts), ranks = std::int64_t{trainers.size()};
  const auto share = (pictures + ranks - 1) / ranks;
  const auto first = std::min(share * trainers.rank(), pictures - 1);
  std::string mine;
  for (std::int64_t done = 0; done < share; done += options_.batch_size) {
    const auto begin = std::min(first + done, pictures - 1);
    const auto end = std::min(begin + std::min<std::int64_t>(options_.batch_size, share - done), pictures);
    auto latents = denoised(begin, end, gives_up);
    if (!latents.defined()) return {};
    latents = latents.to(torch::kCPU).contiguous();
    mine.append(static_cast<const char*>(latents.data_ptr()), latents.nbytes());
    ++phase::moves;
  }
  const auto bytes_of_one = sizeof(float) * static_cast<std::size_t>(std::accumulate(
                                                options_.latent_shape.begin(), options_.latent_shape.end(),
                                                std::int64_t{1}, std::multiplies<>()));
  mine.resize(bytes_of_one * static_cast<std::size_t>(std::clamp<std::int64_t>(pictures - share * trainers.rank(), 0,
                                                                               share)));  // without what was repeated
  return mine;
}

torch::Tensor PicturePainter::denoised(std::int64_t begin, std::int64_t end, const std::function<bool()>& gives_up) {
  std::vector<std::uint64_t> seeds(static_cast<std::size_t>(end - begin));
  std::iota(seeds.begin(), seeds.end(), static_cast<std::uint64_t>(begin));
  const auto pictures = std::ssize(options_.prompts);
  auto text = text_.slice(0, begin, end);
  if (options_.sampling.is_guided()) text = torch::cat({text, text_.slice(0, pictures + begin, pictures + end)});
  return denoise(unet_, options_.sampling, initial_noise(seeds, options_.latent_shape), text, gives_up);
}

std::vector<Image> PicturePainter::decode(const torch::Tensor& latents) {
  std::vector<Image> images;
  for (const auto& part : latents.split(options_.batch_size))
    for (auto& image : decode_scaled_latents(vae_, part)) images.push_back(std::move(image));
  return images;
}

}  // namespace millrace
