#include "scene.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "millrace/core/philox.h"

namespace millrace::shapes {
namespace {

// Share of a pixel that the shape covers, for smooth edges; most pixels have all corners on one side.
float coverage(const Shape& shape, int x, int y, int side, int corners_inside) {
  if (corners_inside == 0 || corners_inside == 4) return corners_inside / 4.0f;
  constexpr int samples = 4;  // each way
  int hits = 0;
  for (int i = 0; i < samples * samples; ++i)
    hits += shape.contains((x + (i % samples + 0.5f) / samples) / side, (y + (i / samples + 0.5f) / samples) / side);
  return static_cast<float>(hits) / (samples * samples);
}

}  // namespace

bool Shape::contains(float at_x, float at_y) const {
  const float dx = (at_x - x) / radius, dy = (at_y - y) / radius;
  switch (kind) {
    case 0:
      return dx * dx + dy * dy <= 1;
    case 1:
      return std::abs(dx) <= 0.9f && std::abs(dy) <= 0.9f;
    default:
      return dy <= 1 && dy >= -1 && std::abs(dx) <= (dy + 1) / 2;  // apex up
  }
}

std::string Scene::caption() const {
  return fmt::format("a {} {} on a {} background", colours[colour].name, shape_names[shape.kind],
                     backgrounds[background].name);
}

Scene scene_of(std::uint64_t seed, std::uint64_t index) {
  const RngKey key{seed, index, 0};
  auto pick = [&](int n, std::uint32_t i) { return static_cast<int>(uniform_int(key, Purpose::crop, n, i)); };
  Scene scene{{pick(3, 0), 0, 0, 0}, pick(4, 1), pick(2, 2)};
  auto& shape = scene.shape;
  shape.radius = (50 + 40 * uniform(key, Purpose::noise, 0)) / 256;
  const float room = 1 - 2 * shape.radius;
  shape.x = shape.radius + room * uniform(key, Purpose::noise, 1);
  shape.y = shape.radius + room * uniform(key, Purpose::noise, 2);
  return scene;
}

Image draw(const Scene& scene, int side) {
  const auto line = static_cast<std::size_t>(side) + 1;
  std::vector<char> corners(line * line);
  for (std::size_t i = 0; i < corners.size(); ++i)
    corners[i] = scene.shape.contains(static_cast<float>(i % line) / side, static_cast<float>(i / line) / side);
  Image image{side, side, Pixels(static_cast<std::size_t>(side) * side * 3)};
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x) {
      const char* corner = corners.data() + static_cast<std::size_t>(y) * line + x;
      const float share = coverage(scene.shape, x, y, side, corner[0] + corner[1] + corner[line] + corner[line + 1]);
      for (int c = 0; c < 3; ++c)
        image.pixels[(static_cast<std::size_t>(y) * side + x) * 3 + c] = static_cast<std::uint8_t>(
            std::lround(share * colours[scene.colour].rgb[c] + (1 - share) * backgrounds[scene.background].rgb[c]));
    }
  return image;
}

}  // namespace millrace::shapes
