#include "millrace/evaluate/clip_score.h"

#include <torch/utils.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/image/pillow_resize.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Size = ClipPreprocessing::Size;

// An integer is the shortest edge for a resize and a square for a crop, as in the files of old.
Size read_size(const Json& json, const char* key, bool is_crop, const std::string& file) {
  const auto found = json.find(key);
  const auto wrong = [&]() -> Size { fail(Exit::io, "{}: {} is no size that is known here", file, key); };
  if (found == json.end()) return wrong();
  const auto side = [&](const char* name) {
    const auto value = found->find(name);
    return value != found->end() && value->is_number_integer() && value->get<int>() > 0 ? value->get<int>() : 0;
  };
  if (found->is_number_integer() && found->get<int>() > 0) {
    const int value = *found;
    return is_crop ? Size{0, value, value} : Size{value, 0, 0};
  }
  if (!found->is_object()) return wrong();
  if (!is_crop && side("shortest_edge")) return {side("shortest_edge"), 0, 0};
  if (side("height") && side("width")) return {0, side("height"), side("width")};
  return wrong();
}

std::vector<float> read_channels(const Json& json, const char* key, std::vector<float> fallback,
                                 const std::string& file) {
  const auto found = json.find(key);
  if (found == json.end()) return fallback;
  if (!found->is_array() || found->size() != 3 ||
      !std::ranges::all_of(*found, [](const Json& value) { return value.is_number(); }))
    fail(Exit::io, "{}: {} must be three numbers", file, key);
  return found->get<std::vector<float>>();
}

Image resized(const Image& image, const Size& size) {
  if (!size.shortest_edge) return resize_bicubic(image, size.width, size.height);
  const int shorter = std::min(image.width, image.height), longer = std::max(image.width, image.height);
  const int other = static_cast<int>(static_cast<double>(size.shortest_edge) * longer / shorter);
  return image.width <= image.height ? resize_bicubic(image, size.shortest_edge, other)
                                     : resize_bicubic(image, other, size.shortest_edge);
}

// f32 (3, H, W).
torch::Tensor planes_of(const Image& image) {
  auto pixels = torch::empty({image.height, image.width, 3}, torch::kUInt8);
  std::copy(image.pixels.begin(), image.pixels.end(), pixels.data_ptr<std::uint8_t>());
  return pixels.permute({2, 0, 1}).to(torch::kFloat32);
}

// The middle `size` numbers of an axis; a shorter one lies between zeros. Halves as transformers' center_crop has them.
torch::Tensor crop_axis(const torch::Tensor& planes, int axis, std::int64_t size) {
  const auto length = planes.size(axis);
  if (length >= size) return planes.narrow(axis, (length - size) / 2, size);
  auto shape = planes.sizes().vec();
  shape[static_cast<std::size_t>(axis)] = size;
  auto padded = torch::zeros(shape);
  padded.narrow(axis, (size - length + 1) / 2, length).copy_(planes);
  return padded;
}

torch::Tensor per_channel(const std::vector<float>& values) {
  return torch::tensor(at::ArrayRef<float>(values)).view({3, 1, 1});
}

torch::Tensor unit(const torch::Tensor& rows) {
  const auto exact = rows.to(torch::kCPU, torch::kFloat64);
  return exact / exact.norm(2, -1, /*keepdim=*/true);
}

std::filesystem::path find_preprocessing(const std::filesystem::path& folder) {
  for (const char* name : {"preprocessor_config.json", "processor_config.json"})
    if (std::filesystem::exists(folder / name)) return folder / name;
  throw Error(Exit::io, fmt::format("evaluate.clip: {}: no preprocessor_config.json", folder.string()),
              "CLIPImageProcessor.save_pretrained writes it, see docs/evaluation.md");
}

}  // namespace

ClipPreprocessing ClipPreprocessing::read(const std::filesystem::path& path) {
  const auto file = path.string();
  const auto whole = read_json_object(path);
  const auto part = whole.find("image_processor");  // as CLIPProcessor saves it
  const auto& json = part != whole.end() && part->is_object() ? *part : whole;
  const auto flag = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return true;
    if (!found->is_boolean()) fail(Exit::io, "{}: {} must be true or false", file, key);
    return found->get<bool>();
  };
  ClipPreprocessing p;
  p.file = file;
  p.resizes = flag("do_resize");
  p.crops = flag("do_center_crop");
  p.rescales = flag("do_rescale");
  p.normalizes = flag("do_normalize");
  constexpr int bicubic = 3;  // of Pillow's filters
  if (p.resizes && json.value("resample", Json(bicubic)) != bicubic)
    fail(Exit::io, "{}: resample is not 3 (bicubic), the one that CLIP's pictures are resized with here", file);
  if (p.resizes) p.size = read_size(json, "size", /*is_crop=*/false, file);
  if (p.crops) p.crop = read_size(json, "crop_size", /*is_crop=*/true, file);
  const auto factor = json.find("rescale_factor");
  if (factor != json.end() && factor->is_number()) p.rescale_factor = *factor;
  p.mean = read_channels(json, "image_mean", {0.48145466F, 0.4578275F, 0.40821073F}, file);
  p.std = read_channels(json, "image_std", {0.26862954F, 0.26130258F, 0.27577711F}, file);
  return p;
}

torch::Tensor ClipPreprocessing::apply(const Image& image) const {
  auto planes = planes_of(resizes ? resized(image, size) : image);
  if (crops) planes = crop_axis(crop_axis(planes, 1, crop.height), 2, crop.width);
  if (rescales) planes = planes * rescale_factor;
  return normalizes ? (planes - per_channel(mean)) / per_channel(std) : planes;
}

ClipScorer::ClipScorer(CLIPModel model, ClipTokenizer tokenizer, ClipPreprocessing preprocessing, torch::Device device)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      preprocessing_(std::move(preprocessing)),
      device_(device) {}

ClipScorer ClipScorer::load(const std::filesystem::path& folder, torch::Device device) {
  if (!std::filesystem::is_directory(folder)) fail(Exit::io, "evaluate.clip: {}: no such folder", folder.string());
  auto model = load_clip_model(folder, device);
  auto tokenizer = ClipTokenizer::load(folder);
  const auto& text = model->config().text;
  if (text.max_position_embeddings < token_count)
    fail(Exit::io, "evaluate.clip: {} reads {} tokens of a caption, CLIP's are {}", folder.string(),
         text.max_position_embeddings, token_count);
  if (tokenizer.vocabulary_size() > text.vocab_size)
    fail(Exit::io, "evaluate.clip: {}: its tokenizer has {} tokens, its network knows {}", folder.string(),
         tokenizer.vocabulary_size(), text.vocab_size);
  return {std::move(model), std::move(tokenizer), ClipPreprocessing::read(find_preprocessing(folder)), device};
}

torch::Tensor ClipScorer::scores(std::span<const Image> images, std::span<const std::string> captions) {
  const torch::NoGradGuard no_grad;
  ensure(images.size() == captions.size(), "a caption for each picture");
  const auto side = model_->config().vision.image_size;
  std::vector<torch::Tensor> pixels;
  auto ids = torch::empty({std::ssize(captions), token_count}, torch::kInt64);
  for (std::size_t i = 0; i < images.size(); ++i) {
    pixels.push_back(preprocessing_.apply(images[i]));
    if (pixels.back().size(1) != side || pixels.back().size(2) != side)
      fail(Exit::io, "evaluate.clip: {} makes pictures of {} x {} pixels, the network takes {}", preprocessing_.file,
           pixels.back().size(2), pixels.back().size(1), side);
    const auto tokens = tokenizer_.encode(captions[i]);
    std::copy(tokens.begin(), tokens.end(), ids[static_cast<std::int64_t>(i)].data_ptr<std::int64_t>());
  }
  const auto image = unit(model_->image_features(torch::stack(pixels).to(device_)));
  const auto text = unit(model_->text_features(ids.to(device_)));
  return 100 * (image * text).sum(-1).clamp_min(0);
}

}  // namespace millrace
