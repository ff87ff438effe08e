#include "inspect/sample_survey.h"

#include <algorithm>
#include <iterator>

#include "millrace/core/error.h"
#include "millrace/image/decode.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/image/resize_image.h"
#include "millrace/models/pipeline_folder.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr std::size_t listed_rejects = 10;
constexpr int grid_side = 128;
constexpr int kept_tokens = token_count - 2;  // beside start and end

std::int64_t count_characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](unsigned char byte) { return (byte & 0xC0) != 0x80; });
}

json describe_lengths(std::vector<std::int64_t> lengths) {
  std::sort(lengths.begin(), lengths.end());
  const auto quantile = [&](double share) { return lengths[static_cast<std::size_t>(share * (lengths.size() - 1))]; };
  return {{"min", lengths.front()}, {"median", quantile(0.5)}, {"p95", quantile(0.95)}, {"max", lengths.back()}};
}

// How many images have a short side of each range; empty ranges are left out.
json describe_short_sides(const std::vector<std::pair<int, int>>& sizes) {
  constexpr int edges[] = {0, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 65536};
  std::int64_t counts[std::size(edges) - 1] = {};
  for (const auto& [width, height] : sizes)
    ++counts[std::upper_bound(std::begin(edges), std::end(edges), std::min(width, height)) - std::begin(edges) - 1];
  json ranges = json::array();
  for (std::size_t i = 0; i < std::size(counts); ++i)
    if (counts[i]) ranges.push_back({{"from", edges[i]}, {"to", edges[i + 1] - 1}, {"images", counts[i]}});
  return ranges;
}

// The whole image in the middle of a square, on grey: what a crop would leave out is worth seeing, too.
Image thumbnail(const Image& image) {
  constexpr std::uint8_t grey = 96;
  const int longer = std::max(image.width, image.height);
  const auto scaled = [&](int side) {
    return std::max(1, static_cast<int>((std::int64_t{side} * grid_side + longer / 2) / longer));
  };
  return add_borders(resize_image(image, scaled(image.width), scaled(image.height)), grid_side, grid_side, grey);
}

}  // namespace

CaptionSurvey::CaptionSurvey(const std::optional<std::string>& pipeline) {
  if (pipeline) tokenizer_.emplace(ClipTokenizer::load(PipelineFolder::open(*pipeline).component("tokenizer")));
}

void CaptionSurvey::add(std::string_view caption) {
  characters_.push_back(count_characters(caption));
  if (tokenizer_) tokens_.push_back(tokenizer_->count(caption));
}

json CaptionSurvey::report() const {
  json report = {{"count", characters_.size()}, {"empty", std::count(characters_.begin(), characters_.end(), 0)}};
  if (!characters_.empty()) report["characters"] = describe_lengths(characters_);
  if (tokens_.empty()) return report;
  report["tokens"] = describe_lengths(tokens_);
  report["tokens"]["cut"] = std::ranges::count_if(tokens_, [](auto tokens) { return tokens > kept_tokens; });
  return report;
}

SampleSurvey::SampleSurvey(const InspectOptions& options) : options_(options), captions_(options.pipeline) {}

void SampleSurvey::add_caption(std::string_view caption) {
  captions_.add(caption);
  caption_ = caption;
}

void SampleSurvey::add_image(const std::string& id, std::string_view bytes) {
  if (const auto failure = decode_image_into(decoded_, bytes))
    return reject(id, reason_of(failure->error), failure->detail);
  sizes_.emplace_back(decoded_.width, decoded_.height);
  if (options_.grid && first_images_.size() < grid_images) {
    first_images_.push_back(thumbnail(decoded_));
    first_captions_.push_back(caption_);
  }
  caption_.clear();
}

void SampleSurvey::reject(const std::string& id, RejectReason reason, const std::string& detail) {
  caption_.clear();
  ++rejected_[to_string(reason)];
  if (first_rejected_.size() == listed_rejects) return;
  first_rejected_.push_back(id + ": " + to_string(reason) + (detail.empty() ? "" : ", " + detail));
}

json SampleSurvey::describe_images() const {
  json images = {{"decoded", sizes_.size()}};
  if (sizes_.empty()) return images;
  const auto pixels = [](const auto& size) { return std::int64_t{size.first} * size.second; };
  const auto [smallest, largest] = std::ranges::minmax_element(sizes_, {}, pixels);
  images["smallest"] = *smallest;
  images["largest"] = *largest;
  images["short_side"] = describe_short_sides(sizes_);
  return images;
}

void SampleSurvey::finish(json& report, const std::filesystem::path& path) const {
  report["images"] = describe_images();
  report["captions"] = captions_.report();
  report["rejected"] = rejected_;
  report["first_rejected"] = first_rejected_;
  if (options_.grid) write_grid(*options_.grid, first_images_, path, first_captions_);
}

void write_grid(const std::filesystem::path& grid, const std::vector<Image>& images, const std::filesystem::path& path,
                const std::vector<std::string>& captions) {
  if (images.empty()) fail(Exit::usage, "--grid: {} holds no image that can be decoded", path.string());
  write_png(grid, make_grid(images, captions));
}

}  // namespace millrace
