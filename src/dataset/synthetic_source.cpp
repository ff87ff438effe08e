#include "synthetic_source.h"

#include <array>

#include "millrace/core/error.h"
#include "millrace/core/philox.h"
#include "millrace/dataset/row.h"
#include "millrace/image/encode_jpeg.h"

namespace millrace {

namespace {

constexpr std::uint64_t seed = 420;
constexpr int images = 32;
constexpr int cells = 8;  // random colours along a side, blended in between

Image soft_colours(int side, std::uint64_t number) {
  constexpr int corners = cells + 1;
  std::array<float, corners * corners * 3> colours;
  const RngKey key{seed, number, 0};
  for (std::size_t i = 0; i < colours.size(); ++i)
    colours[i] = 255 * uniform(key, Purpose::weights, static_cast<std::uint32_t>(i));
  Image image = make_image(side, side);
  for (int y = 0; y < side; ++y) {
    const float v = static_cast<float>(y) * cells / side;
    for (int x = 0; x < side; ++x) {
      const float u = static_cast<float>(x) * cells / side;
      const int row = static_cast<int>(v), column = static_cast<int>(u);
      const float down = v - row, right = u - column;
      for (int c = 0; c < 3; ++c) {
        const auto corner = [&](int dy, int dx) { return colours[((row + dy) * corners + column + dx) * 3 + c]; };
        const float top = corner(0, 0) + right * (corner(0, 1) - corner(0, 0));
        const float bottom = corner(1, 0) + right * (corner(1, 1) - corner(1, 0));
        image.pixels[(std::size_t(y) * side + x) * 3 + c] = static_cast<std::uint8_t>(top + down * (bottom - top));
      }
    }
  }
  return image;
}

std::string caption(std::uint64_t hash) {
  static constexpr std::array kinds = {"a photo of", "a painting of", "a drawing of", "a close-up of"};
  static constexpr std::array things = {"a river",       "a mill",     "an old bridge", "a red boat",
                                        "a green field", "a mountain", "two cats",      "a street"};
  static constexpr std::array times = {"at dawn", "at noon", "in the evening", "in winter", "after rain"};
  return fmt::format("{} {} {}", kinds[hash % kinds.size()], things[hash / 8 % things.size()],
                     times[hash / 64 % times.size()]);
}

class SyntheticReader final : public SplitReader {
 public:
  SyntheticReader(const Archive& archive, const Split& split, std::uint64_t first_row,
                  const std::vector<std::string>& jpegs)
      : archive_(archive), split_(split), next_(first_row), jpegs_(jpegs) {}

  std::optional<RawRow> next() override {
    const std::uint64_t row = split_.row(next_++);
    if (row >= *archive_.limit) return std::nullopt;
    RawSample sample;
    sample.ref = name_row(archive_, fmt::format("{:09}", row));
    sample.image = jpegs_[sample.ref.hash % jpegs_.size()];
    sample.caption = caption(sample.ref.hash);
    return sample;
  }

 private:
  const Archive& archive_;
  const Split split_;
  std::uint64_t next_;  // row of the split
  const std::vector<std::string>& jpegs_;
};

}  // namespace

SyntheticSource::SyntheticSource(const Manifest& manifest, int side) : manifest_(manifest) {
  for (int i = 0; i < images; ++i) jpegs_.push_back(encode_jpeg(soft_colours(side, i), 90));
}

std::unique_ptr<SplitReader> SyntheticSource::open(const Split& split, std::uint64_t first_row) const {
  return std::make_unique<SyntheticReader>(manifest_.archives.at(split.archive), split, first_row, jpegs_);
}

}  // namespace millrace
