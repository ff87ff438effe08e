// The quickstart's world: coloured shapes with captions that say what is there, and a judge that looks at pictures.
//   millrace_shapes make --out DIR [--count 4000] [--per-archive 1000] [--side 256] [--seed 1]
//   millrace_shapes judge --images DIR        (reads images.jsonl and the PNGs that `millrace generate` wrote)
//   millrace_shapes captions                  (the 24 captions, one a line)
#include <array>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/philox.h"
#include "millrace/image/decode.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/io/tar_writer.h"

namespace {

using namespace millrace;
using Rgb = std::array<int, 3>;

struct NamedColour {
  const char* name;
  Rgb rgb;
};
constexpr NamedColour colours[] = {
    {"red", {220, 40, 40}}, {"green", {40, 180, 60}}, {"blue", {50, 80, 220}}, {"yellow", {235, 200, 40}}};
constexpr NamedColour backgrounds[] = {{"white", {255, 255, 255}}, {"black", {0, 0, 0}}};
constexpr const char* shapes[] = {"circle", "square", "triangle"};

struct Scene {
  int shape, colour, background;
  float x, y, radius;  // shares of the side
  std::string caption() const {
    return fmt::format("a {} {} on a {} background", colours[colour].name, shapes[shape], backgrounds[background].name);
  }
};

Scene scene_of(std::uint64_t seed, std::uint64_t index) {
  const RngKey key{seed, index, 0};
  auto pick = [&](int n, std::uint32_t i) { return static_cast<int>(uniform_int(key, Purpose::crop, n, i)); };
  Scene scene{pick(3, 0), pick(4, 1), pick(2, 2), 0, 0, 0};
  scene.radius = (50 + 40 * uniform(key, Purpose::noise, 0)) / 256;
  const float room = 1 - 2 * scene.radius;
  scene.x = scene.radius + room * uniform(key, Purpose::noise, 1);
  scene.y = scene.radius + room * uniform(key, Purpose::noise, 2);
  return scene;
}

bool inside(const Scene& scene, float x, float y) {
  const float dx = (x - scene.x) / scene.radius, dy = (y - scene.y) / scene.radius;
  switch (scene.shape) {
    case 0:
      return dx * dx + dy * dy <= 1;
    case 1:
      return std::abs(dx) <= 0.9f && std::abs(dy) <= 0.9f;
    default:
      return dy <= 1 && dy >= -1 && std::abs(dx) <= (dy + 1) / 2;  // apex up
  }
}

// Share of a pixel that the shape covers, for smooth edges; most pixels have all corners on one side.
float coverage(const Scene& scene, int x, int y, int side, int corners_inside) {
  if (corners_inside == 0 || corners_inside == 4) return corners_inside / 4.0f;
  constexpr int samples = 4;  // each way
  int hits = 0;
  for (int i = 0; i < samples * samples; ++i)
    hits += inside(scene, (x + (i % samples + 0.5f) / samples) / side, (y + (i / samples + 0.5f) / samples) / side);
  return static_cast<float>(hits) / (samples * samples);
}

Image draw(const Scene& scene, int side) {
  const auto line = static_cast<std::size_t>(side) + 1;
  std::vector<char> corners(line * line);
  for (std::size_t i = 0; i < corners.size(); ++i)
    corners[i] = inside(scene, static_cast<float>(i % line) / side, static_cast<float>(i / line) / side);
  Image image{side, side, Pixels(static_cast<std::size_t>(side) * side * 3)};
  for (int y = 0; y < side; ++y)
    for (int x = 0; x < side; ++x) {
      const char* corner = corners.data() + static_cast<std::size_t>(y) * line + x;
      const float share = coverage(scene, x, y, side, corner[0] + corner[1] + corner[line] + corner[line + 1]);
      for (int c = 0; c < 3; ++c)
        image.pixels[(static_cast<std::size_t>(y) * side + x) * 3 + c] = static_cast<std::uint8_t>(
            std::lround(share * colours[scene.colour].rgb[c] + (1 - share) * backgrounds[scene.background].rgb[c]));
    }
  return image;
}

int make(const std::map<std::string, std::string>& options) {
  auto number = [&](const char* name, int fallback) {
    return options.contains(name) ? std::stoi(options.at(name)) : fallback;
  };
  const fs::path out = options.at("--out");
  const int count = number("--count", 4000), per_archive = number("--per-archive", 1000), side = number("--side", 256);
  const std::uint64_t seed = number("--seed", 1);
  fs::create_directories(out);
  int archives = 0;
  for (int first = 0; first < count; first += per_archive, ++archives) {
    TarWriter tar(out / fmt::format("{:05d}.tar", archives));
    for (int i = first; i < std::min(first + per_archive, count); ++i) {
      const Scene scene = scene_of(seed, i);
      const std::string key = fmt::format("{:09d}", i);
      const nlohmann::json metadata = {{"key", key},
                                       {"caption", scene.caption()},
                                       {"width", side},
                                       {"height", side},
                                       {"shape", shapes[scene.shape]},
                                       {"colour", colours[scene.colour].name},
                                       {"background", backgrounds[scene.background].name}};
      tar.write(
          {key, {{"jpg", encode_jpeg(draw(scene, side), 95)}, {"json", metadata.dump()}, {"txt", scene.caption()}}});
    }
    tar.commit();
  }
  fmt::print("{} images of {} px in {} archives: {}\n", count, side, archives, out.string());
  return 0;
}

// The most frequent colour and the most frequent background among pixels labelled with the nearest of the six.
struct Verdict {
  std::string colour, background;
};
Verdict look_at(const Image& image) {
  std::map<std::string, int> colour_votes, background_votes;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    int best = 1 << 30;
    const char* name = "";
    bool is_background = false;
    auto consider = [&](const NamedColour& candidate, bool background) {
      int distance = 0;
      for (int c = 0; c < 3; ++c)
        distance += (image.pixels[i + c] - candidate.rgb[c]) * (image.pixels[i + c] - candidate.rgb[c]);
      if (distance < best) best = distance, name = candidate.name, is_background = background;
    };
    for (const auto& colour : colours) consider(colour, false);
    for (const auto& background : backgrounds) consider(background, true);
    ++(is_background ? background_votes : colour_votes)[name];
  }
  auto winner = [](const std::map<std::string, int>& votes) {
    std::string name = "none";
    int most = 0;
    for (const auto& [candidate, n] : votes)
      if (n > most) most = n, name = candidate;
    return name;
  };
  return {winner(colour_votes), winner(background_votes)};
}

int judge(const std::map<std::string, std::string>& options) {
  const fs::path folder = options.at("--images");
  std::ifstream lines(folder / "images.jsonl");
  if (!lines) fail(Exit::io, "{} has no images.jsonl", folder.string());
  int images = 0, right_colours = 0, right_backgrounds = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    const std::string prompt = entry.at("prompt"), file = entry.at("file");
    auto decoded = decode_image(read_file(folder / file));
    if (!std::holds_alternative<Image>(decoded)) fail(Exit::io, "{}: not a picture", (folder / file).string());
    const Verdict verdict = look_at(std::get<Image>(decoded));
    const bool colour = prompt.find(" " + verdict.colour + " ") != prompt.npos;
    const bool background = prompt.find("on a " + verdict.background + " background") != prompt.npos;
    ++images;
    right_colours += colour;
    right_backgrounds += background;
    if (!colour || !background)
      fmt::print("  {}: asked for \"{}\", looks {} on {}\n", file, prompt, verdict.colour, verdict.background);
  }
  fmt::print(
      "{}\n",
      nlohmann::json{{"images", images}, {"right_colours", right_colours}, {"right_backgrounds", right_backgrounds}}
          .dump());
  return images > 0 ? 0 : 1;
}

int captions() {
  for (int shape = 0; shape < 3; ++shape)
    for (int background = 0; background < 2; ++background)
      for (int colour = 0; colour < 4; ++colour)
        fmt::print("{}\n", Scene{shape, colour, background, 0, 0, 0}.caption());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  std::map<std::string, std::string> options;
  for (int i = 2; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  try {
    if (command == "make" && options.contains("--out")) return make(options);
    if (command == "judge" && options.contains("--images")) return judge(options);
    if (command == "captions") return captions();
  } catch (const std::exception& error) {
    fmt::print(stderr, "millrace_shapes: {}\n", error.what());
    return 1;
  }
  fmt::print(stderr,
             "usage: millrace_shapes make --out DIR [--count N] [--per-archive N] [--side PX] [--seed N] | judge "
             "--images DIR | captions\n");
  return 2;
}
