#include "millrace/loader/transform_sample.h"

#include <optional>
#include <string_view>
#include <utility>

#include "millrace/core/stopwatch.h"
#include "millrace/dataset/image_uri.h"

namespace millrace {
namespace {

// Full-size pixels: fresh memory for every image would cost more than the resize. What a rare huge one took goes back.
class DecodeBuffer {
 public:
  ~DecodeBuffer() {
    if (image().pixels.capacity() > max_kept_bytes) image() = {};
  }
  static Image& image() {
    thread_local Image image;
    return image;
  }

 private:
  static constexpr std::size_t max_kept_bytes = 64 << 20;
};

using Refusal = std::pair<RejectReason, std::string>;

std::optional<Refusal> read_image(RawSample& sample, const TransformPipeline& transforms) {
  if (sample.image_uri.empty()) return std::nullopt;
  const auto load = [&] { return load_image(sample.image_uri, transforms.images.max_bytes, transforms.last_files); };
  auto loaded = transforms.retry ? transforms.retry->run(load) : load();
  if (auto* none = std::get_if<LoadFailure>(&loaded)) return Refusal(none->reason, std::move(none->why));
  sample.image = std::move(std::get<std::string>(loaded));
  return std::nullopt;
}

std::optional<Refusal> decode(const RawSample& sample, const TransformPipeline& transforms, const RngKey& key,
                              Image& pixels) {
  const auto columns = [&](int width, int height) {
    return columns_of_transform(width, height, transforms.transform, key);
  };
  if (auto failure =
          decode_image_into(pixels, sample.image, transforms.images, {columns, transforms.transform.resolution}))
    return Refusal(reason_of(failure->error), std::move(failure->detail));
  return std::nullopt;
}

}  // namespace

void TransformSeconds::add(const TransformSeconds& other, double factor) {
  read += factor * other.read;
  decode += factor * other.decode;
  transform += factor * other.transform;
  tokenize += factor * other.tokenize;
}

static Filter::Verdict judge(const SampleRef& ref, std::string_view json, const TransformPipeline& transforms) {
  if (!transforms.filter || transforms.filter->empty()) return Filter::Verdict::keep;
  const auto verdict = transforms.filter->judge(json);
  if (transforms.filter_watch) transforms.filter_watch->count(verdict, json, ref.hash);
  return verdict;
}

std::optional<std::pair<RejectReason, std::string>> judge_metadata(const RawSample& sample,
                                                                   const TransformPipeline& transforms) {
  const auto verdict = judge(sample.ref, sample.json, transforms);
  if (verdict == Filter::Verdict::bad_json)
    return Refusal(RejectReason::bad_json, "the filters need its metadata, which are missing or broken");
  if (verdict == Filter::Verdict::drop) return Refusal(RejectReason::filtered, "");
  return std::nullopt;
}

void judge_rejected(Rejected& rejected, const TransformPipeline& transforms) {
  const std::string json = std::exchange(rejected.json, {});
  if (json.empty() || judge(rejected.ref, json, transforms) != Filter::Verdict::drop) return;
  rejected.reason = RejectReason::filtered;
  rejected.detail.clear();
}

namespace {

// One of all that the sample has.
std::string choose_caption(RawSample& sample, RngKey key, bool one_caption) {
  if (sample.more_captions.empty()) return std::move(sample.caption);
  if (one_caption) key.epoch = 0;
  const auto chosen = uniform_int(key, Purpose::caption_choice, sample.more_captions.size() + 1);
  return std::move(chosen == 0 ? sample.caption : sample.more_captions[chosen - 1]);
}

}  // namespace

std::variant<TransformedSample, Rejected> transform_sample(RawSample sample, const TransformPipeline& transforms,
                                                           TransformSeconds& spent) {
  const DecodeBuffer buffer;
  Image& decoded = buffer.image();
  const RngKey key{transforms.seed, sample.ref.hash, sample.ref.epoch};
  const auto timed = [](double& sum, auto&& stage) {
    const Stopwatch watch;
    auto result = stage();
    sum += watch.seconds();
    return result;
  };
  auto refusal = timed(spent.read, [&] { return read_image(sample, transforms); });
  if (!refusal) refusal = timed(spent.decode, [&] { return decode(sample, transforms, key, decoded); });
  if (refusal) return Rejected{std::move(sample.ref), refusal->first, std::move(refusal->second)};
  if (transforms.enlarged_watch) transforms.enlarged_watch->count(decoded, transforms.transform.resolution);

  TransformedSample result;
  result.image = timed(spent.transform, [&] { return transform_image(decoded, transforms.transform, key); });
  result.caption = choose_caption(sample, key, transforms.one_caption);
  if (transforms.tokenizer)
    result.tokens = timed(spent.tokenize, [&] { return transforms.tokenizer->encode(result.caption); });
  result.ref = std::move(sample.ref);
  return result;
}

}  // namespace millrace
