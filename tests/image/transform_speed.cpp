// Images per second of decode, decode + transform (exact and fast), and with tokenizing, one thread; and how far fast
// pixels are from exact ones:
//   transform_speed FOLDER [RESOLUTION] [TOKENIZER_FOLDER]
// FOLDER holds *.jpg and captions.txt (scripts/bench/make_photos.py --folder).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "millrace/image/decode.h"
#include "millrace/image/transform.h"
#include "millrace/text/tokenizer.h"

namespace {

namespace fs = std::filesystem;
using namespace millrace;

std::vector<std::string> read_photos(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<std::string> photos;
  for (const fs::path& path : paths) {
    std::stringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    photos.push_back(content.str());
  }
  return photos;
}

std::vector<std::string> read_lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Median rate of seven runs after a warm-up.
void measure(const std::string& figure, std::size_t count, const std::function<void(std::size_t)>& one) {
  std::vector<double> rates;
  for (int run = 0; run < 8; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < count; ++i) one(i);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (run > 0) rates.push_back(count / seconds.count());
  }
  std::ranges::sort(rates);
  fmt::print("{:<40} {:8.1f} img/s ({:.1f} to {:.1f})  {:.3f} ms\n", figure, rates[3], rates.front(), rates.back(),
             1e3 / rates[3]);
}

// Of all pixel values, 0 to 255.
void print_differences(std::size_t count, const std::function<Image(std::size_t)>& exact,
                       const std::function<Image(std::size_t)>& fast) {
  std::vector<std::size_t> frequency(256);
  double sum = 0, squares = 0, values = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Image a = exact(i), b = fast(i);
    for (std::size_t p = 0; p < a.pixels.size(); ++p) {
      const int difference = std::abs(a.pixels[p] - b.pixels[p]);
      ++frequency[difference];
      sum += difference;
      squares += difference * difference;
      ++values;
    }
  }
  int highest = 0;  // 99.9 % of the differences are no larger
  for (double below = frequency[0]; below < 0.999 * values; below += frequency[++highest]) continue;
  const auto largest =
      std::distance(std::ranges::find_if(frequency.rbegin(), frequency.rend(), std::identity()), frequency.rend()) - 1;
  fmt::print("{:<40} mean {:.2f}, 99.9 % within {}, largest {}, PSNR {:.1f} dB\n", "difference of fast pixels",
             sum / values, highest, largest, squares > 0 ? 10 * std::log10(255 * 255 * values / squares) : 99.0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: transform_speed FOLDER [RESOLUTION] [TOKENIZER_FOLDER]\n");
    return 2;
  }
  const auto photos = read_photos(argv[1]);
  const auto captions = read_lines(fs::path(argv[1]) / "captions.txt");
  const TransformConfig config{.resolution = argc > 2 ? std::stoi(argv[2]) : 256};
  std::optional<ClipTokenizer> tokenizer;
  if (argc > 3) tokenizer.emplace(ClipTokenizer::load(argv[3]));

  std::vector<Image> images;
  for (const auto& photo : photos) images.push_back(std::get<Image>(decode_image(photo)));
  std::size_t sink = 0;
  Image decoded;
  const auto decode = [&](std::size_t i) -> const Image& {
    if (auto failure = decode_image_into(decoded, photos[i])) throw std::runtime_error(failure->detail);
    return decoded;
  };
  measure("decode", photos.size(), [&](std::size_t i) { sink += decode(i).pixels[0]; });
  measure("transform", photos.size(), [&](std::size_t i) { sink += transform_image(images[i], config, {}).pixels[0]; });
  // As producers do it: only the columns that the crop needs are decoded.
  const auto wanted = [&](int width, int height) { return columns_of_transform(width, height, config, {}); };
  const auto prepare = [&](std::size_t i, ImageConfig::Decode decode) {
    const ImageConfig images{.decode = decode};
    if (auto failure = decode_image_into(decoded, photos[i], images, {wanted, config.resolution}))
      throw std::runtime_error(failure->detail);
    return transform_image(decoded, config, {});
  };
  const auto decode_and_transform = [&](std::size_t i) { return prepare(i, ImageConfig::Decode::exact); };
  const auto decode_fast = [&](std::size_t i) { return prepare(i, ImageConfig::Decode::fast); };
  measure("decode + transform", photos.size(), [&](std::size_t i) { sink += decode_and_transform(i).pixels[0]; });
  measure("decode fast + transform", photos.size(), [&](std::size_t i) { sink += decode_fast(i).pixels[0]; });
  print_differences(photos.size(), decode_and_transform, decode_fast);
  if (tokenizer) {
    measure("tokenise", photos.size(), [&](std::size_t i) { sink += tokenizer->encode(captions[i])[1]; });
    measure("decode + transform + tokenise", photos.size(),
            [&](std::size_t i) { sink += decode_and_transform(i).pixels[0] + tokenizer->encode(captions[i])[1]; });
  }
  return sink == 1;  // keeps the work from being optimised away
}
