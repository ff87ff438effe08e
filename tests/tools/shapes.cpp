// The quickstart's world: coloured shapes with captions that say what is there, and a judge that looks at pictures.
//   millrace_shapes make --out DIR [--count 4000] [--per-archive 1000] [--side 256] [--seed 1]
//   millrace_shapes judge --images DIR        (reads images.jsonl and the PNGs that `millrace generate` wrote)
//   millrace_shapes captions                  (the 24 captions, one a line)
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "judge.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/image/decode.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/io/tar_writer.h"
#include "scene.h"

namespace {

using namespace millrace;
using namespace millrace::shapes;

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
                                       {"shape", shape_names[scene.shape.kind]},
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

int judge(const std::map<std::string, std::string>& options) {
  const fs::path folder = options.at("--images");
  std::ifstream lines(folder / "images.jsonl");
  if (!lines) fail(Exit::io, "{} has no images.jsonl", folder.string());
  int images = 0, right_colours = 0, right_shapes = 0, right_backgrounds = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line);
    const std::string prompt = entry.at("prompt"), file = entry.at("file");
    auto decoded = decode_image(read_file(folder / file));
    if (!std::holds_alternative<Image>(decoded)) fail(Exit::io, "{}: not a picture", (folder / file).string());
    const auto verdict = look_at(std::get<Image>(decoded));
    const auto asks_for = [&](const std::string& words) { return prompt.find(words) != prompt.npos; };
    const bool colour = asks_for(" " + verdict.colour + " "), shape = asks_for(" " + verdict.shape + " ");
    const bool background = asks_for("on a " + verdict.background + " background");
    ++images;
    right_colours += colour;
    right_shapes += shape;
    right_backgrounds += background;
    if (!colour || !shape || !background)
      fmt::print("  {}: asked for \"{}\", looks like a {} {} on {}\n", file, prompt, verdict.colour, verdict.shape,
                 verdict.background);
  }
  const nlohmann::json counts = {{"images", images},
                                 {"right_backgrounds", right_backgrounds},
                                 {"right_colours", right_colours},
                                 {"right_shapes", right_shapes}};
  fmt::print("{}\n", counts.dump());
  return images > 0 ? 0 : 1;
}

int captions() {
  for (int shape = 0; shape < 3; ++shape)
    for (int background = 0; background < 2; ++background)
      for (int colour = 0; colour < 4; ++colour) fmt::print("{}\n", Scene{{shape}, colour, background}.caption());
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
