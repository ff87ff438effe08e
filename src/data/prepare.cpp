#include "millrace/data/prepare.h"

#include <optional>
#include <utility>

#include "image_place.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

// Full-size pixels: fresh memory for every image would cost more than the resize. What a rare huge one took goes back.
class DecodeBuffer {
 public:
  ~DecodeBuffer() {
    if (image().pixels.capacity() > most_kept_bytes) image() = {};
  }
  static Image& image() {
    thread_local Image image;
    return image;
  }

 private:
  static constexpr std::size_t most_kept_bytes = 64 << 20;
};

using Refusal = std::pair<Reason, std::string>;

std::optional<Refusal> read_image(RawSample& sample, const Preparation& preparation) {
  if (sample.image_place.empty()) return std::nullopt;
  auto loaded = load_image(sample.image_place, preparation.images.max_bytes);
  if (auto* none = std::get_if<NoImage>(&loaded)) return Refusal(none->reason, std::move(none->why));
  sample.image = std::move(std::get<std::string>(loaded));
  return std::nullopt;
}

std::optional<Refusal> decode(const RawSample& sample, const Preparation& preparation, const RngKey& key,
                              Image& pixels) {
  const auto columns = [&](int width, int height) {
    return columns_of_transform(width, height, preparation.transform, key);
  };
  if (auto failure =
          decode_image_into(pixels, sample.image, preparation.images, {columns, preparation.transform.resolution}))
    return Refusal(failure->reason, std::move(failure->detail));
  return std::nullopt;
}

}  // namespace

void PrepareSeconds::add(const PrepareSeconds& other, double factor) {
  read += factor * other.read;
  decode += factor * other.decode;
  transform += factor * other.transform;
  tokenise += factor * other.tokenise;
}

std::optional<std::pair<Reason, std::string>> judge_metadata(const RawSample& sample, const Preparation& preparation) {
  if (!preparation.filter || preparation.filter->empty()) return std::nullopt;
  const Filter::Verdict verdict = preparation.filter->judge(sample.json);
  if (preparation.filter_watch) preparation.filter_watch->count(verdict, sample.json, sample.ref.hash);
  if (verdict == Filter::Verdict::bad_json)
    return Refusal(Reason::bad_json, "the filters need its metadata, which are missing or broken");
  if (verdict == Filter::Verdict::drop) return Refusal(Reason::filtered, "");
  return std::nullopt;
}

std::variant<TransformedSample, Rejected> prepare_sample(RawSample sample, const Preparation& preparation,
                                                         PrepareSeconds& spent) {
  const DecodeBuffer buffer;
  Image& decoded = buffer.image();
  const RngKey key{preparation.seed, sample.ref.hash, sample.ref.visit};
  const auto timed = [](double& sum, auto&& stage) {
    const Stopwatch watch;
    auto result = stage();
    sum += watch.seconds();
    return result;
  };
  auto refusal = timed(spent.read, [&] { return read_image(sample, preparation); });
  if (!refusal) refusal = timed(spent.decode, [&] { return decode(sample, preparation, key, decoded); });
  if (refusal) return Rejected{std::move(sample.ref), refusal->first, std::move(refusal->second)};

  TransformedSample result;
  result.image = timed(spent.transform, [&] { return transform_image(decoded, preparation.transform, key); });
  if (preparation.tokenizer)
    result.tokens = timed(spent.tokenise, [&] { return preparation.tokenizer->encode(sample.caption); });
  result.caption = std::move(sample.caption);
  result.ref = std::move(sample.ref);
  return result;
}

}  // namespace millrace
