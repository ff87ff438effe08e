#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "millrace/image/image.h"

// The quickstart's world: a coloured shape on a background.
namespace millrace::shapes {

using Rgb = std::array<int, 3>;
struct NamedColour {
  const char* name;
  Rgb rgb;
};
inline constexpr NamedColour colours[] = {
    {"red", {220, 40, 40}}, {"green", {40, 180, 60}}, {"blue", {50, 80, 220}}, {"yellow", {235, 200, 40}}};
inline constexpr NamedColour backgrounds[] = {{"white", {255, 255, 255}}, {"black", {0, 0, 0}}};

// Upright, its centre and radius as shares of a picture's side.
struct Shape {
  int kind = 0;  // of shape_names
  float x = 0, y = 0, radius = 0;

  bool contains(float at_x, float at_y) const;
};
inline constexpr const char* shape_names[] = {"circle", "square", "triangle"};

struct Scene {
  Shape shape;
  int colour = 0, background = 0;

  std::string caption() const;
};

// A random one by (seed, index), whole inside the picture.
Scene scene_of(std::uint64_t seed, std::uint64_t index);

// `side` pixels wide and high, with smooth edges.
Image draw(const Scene& scene, int side);

}  // namespace millrace::shapes
