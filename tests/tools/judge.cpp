#include "judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <span>
#include <vector>

#include "scene.h"

namespace millrace::shapes {
namespace {

int distance(const std::uint8_t* pixel, const Rgb& rgb) {
  int sum = 0;
  for (int c = 0; c < 3; ++c) sum += (pixel[c] - rgb[c]) * (pixel[c] - rgb[c]);
  return sum;
}

struct Palette {
  const NamedColour *colour = nullptr, *background = nullptr;
};

Palette palette_of(const Image& image) {
  std::vector<int> colour_votes(std::size(colours)), background_votes(std::size(backgrounds));
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    const auto nearest = [&](std::span<const NamedColour> candidates) {
      return std::ranges::min_element(candidates, {}, [&](const auto& c) { return distance(&image.pixels[i], c.rgb); });
    };
    const auto colour = nearest(colours), background = nearest(backgrounds);
    if (distance(&image.pixels[i], colour->rgb) < distance(&image.pixels[i], background->rgb))
      ++colour_votes[static_cast<std::size_t>(&*colour - colours)];
    else
      ++background_votes[static_cast<std::size_t>(&*background - backgrounds)];
  }
  const auto winner = [](const std::vector<int>& votes, const NamedColour* candidates) {
    const auto most = std::ranges::max_element(votes);
    return *most > 0 ? candidates + (most - votes.begin()) : nullptr;
  };
  return {winner(colour_votes, colours), winner(background_votes, backgrounds)};
}

// One flag a pixel.
struct Mask {
  int width = 0, height = 0;
  std::vector<char> is_set;
};

// The largest patch of neighbours that are nearer to the colour than to the background.
Mask largest_patch(const Image& image, const Palette& palette) {
  Mask open{image.width, image.height, std::vector<char>(image.pixels.size() / 3)};
  for (std::size_t i = 0; i < open.is_set.size(); ++i)
    open.is_set[i] =
        distance(&image.pixels[3 * i], palette.colour->rgb) < distance(&image.pixels[3 * i], palette.background->rgb);
  std::vector<std::size_t> largest, patch;
  const auto take = [&](int x, int y) {
    const auto at = static_cast<std::size_t>(y) * open.width + x;
    if (x < 0 || y < 0 || x >= open.width || y >= open.height || !open.is_set[at]) return;
    open.is_set[at] = 0;
    patch.push_back(at);
  };
  for (int y = 0; y < open.height; ++y)
    for (int x = 0; x < open.width; ++x) {
      patch.clear();
      take(x, y);
      for (std::size_t next = 0; next < patch.size(); ++next) {
        const int px = static_cast<int>(patch[next] % open.width), py = static_cast<int>(patch[next] / open.width);
        take(px - 1, py), take(px + 1, py), take(px, py - 1), take(px, py + 1);
      }
      if (patch.size() > largest.size()) largest = patch;
    }
  for (const auto at : largest) open.is_set[at] = 1;  // all patches have been taken: nothing else is set
  return open;
}

// Of this kind, with the patch's centre of mass and area. Lengths in pixels.
Shape fitted(int kind, const Mask& patch) {
  double area = 0, sum_x = 0, sum_y = 0;
  for (std::size_t i = 0; i < patch.is_set.size(); ++i) {
    if (!patch.is_set[i]) continue;
    area += 1;
    sum_x += static_cast<double>(i % patch.width) + 0.5;
    sum_y += static_cast<double>(i / patch.width) + 0.5;
  }
  constexpr double unit_areas[] = {std::numbers::pi, 1.8 * 1.8, 2};  // of radius 1
  const double radius = std::sqrt(area / unit_areas[kind]);
  const double below_centre = kind == 2 ? radius / 3 : 0;  // a triangle's centre of mass lies below its middle
  return {kind, static_cast<float>(sum_x / area), static_cast<float>(sum_y / area - below_centre),
          static_cast<float>(radius)};
}

double overlap(const Shape& shape, const Mask& patch) {
  int both = 0, any = 0;
  for (std::size_t i = 0; i < patch.is_set.size(); ++i) {
    const bool inside =
        shape.contains(static_cast<float>(i % patch.width) + 0.5f, static_cast<float>(i / patch.width) + 0.5f);
    both += inside && patch.is_set[i];
    any += inside || patch.is_set[i];
  }
  return static_cast<double>(both) / any;
}

std::string shape_of(const Mask& patch) {
  double best = least_overlap;
  std::string name = "none";
  for (int kind = 0; kind < static_cast<int>(std::size(shape_names)); ++kind) {
    const double found = overlap(fitted(kind, patch), patch);
    if (found >= best) best = found, name = shape_names[kind];
  }
  return name;
}

}  // namespace

Verdict look_at(const Image& image) {
  const auto palette = palette_of(image);
  Verdict verdict;
  if (palette.colour) verdict.colour = palette.colour->name;
  if (palette.background) verdict.background = palette.background->name;
  if (palette.colour && palette.background) verdict.shape = shape_of(largest_patch(image, palette));
  return verdict;
}

}  // namespace millrace::shapes
