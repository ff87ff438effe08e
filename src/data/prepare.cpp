#include "millrace/data/prepare.h"

#include <utility>

#include "image_place.h"

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

}  // namespace

std::variant<TransformedSample, Rejected> prepare_sample(RawSample sample, const Preparation& preparation) {
  if (preparation.filter && !preparation.filter->empty()) {
    const Filter::Verdict verdict = preparation.filter->judge(sample.json);
    if (preparation.filter_watch) preparation.filter_watch->count(verdict, sample.json);
    if (verdict == Filter::Verdict::bad_json) {
      return Rejected{std::move(sample.ref), Reason::bad_json,
                      "the filters need its metadata, which are missing or broken"};
    }
    if (verdict == Filter::Verdict::drop) return Rejected{std::move(sample.ref), Reason::filtered, ""};
  }
  if (!sample.image_place.empty()) {
    auto loaded = load_image(sample.image_place, preparation.images.max_bytes);
    if (auto* none = std::get_if<NoImage>(&loaded))
      return Rejected{std::move(sample.ref), none->reason, std::move(none->why)};
    sample.image = std::move(std::get<std::string>(loaded));
  }
  const DecodeBuffer buffer;
  Image& decoded = buffer.image();
  const RngKey key{preparation.seed, sample.ref.hash, sample.ref.visit};
  const auto columns = [&](int width, int height) {
    return columns_of_transform(width, height, preparation.transform, key);
  };
  if (auto failure =
          decode_image_into(decoded, sample.image, preparation.images, {columns, preparation.transform.resolution})) {
    return Rejected{std::move(sample.ref), failure->reason, std::move(failure->detail)};
  }
  TransformedSample result;
  result.image = transform_image(decoded, preparation.transform, key);
  if (preparation.tokenizer) result.tokens = preparation.tokenizer->encode(sample.caption);
  result.caption = std::move(sample.caption);
  result.ref = std::move(sample.ref);
  return result;
}

}  // namespace millrace
