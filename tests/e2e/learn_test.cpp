// Does it learn? The quickstart's whole path, on fewer images: VAE, U-Net online with a producer apart, export,
// pictures, and a judge that looks at their colours and shapes.
#include <gtest/gtest.h>

#include "e2e/program.h"

namespace millrace::e2e {
namespace {

TEST(Learn, PicturesShowWhatTheCaptionsSay) {
  const auto dir = workshop() / "learn";
  const auto at = [&](const char* name) { return (dir / name).string(); };
  auto step = [&](const std::string& command) {
    const auto outcome = shell(command);
    ASSERT_EQ(outcome.exit_code, 0) << command << "\n" << outcome.output;
  };
  fs::create_directories(dir);
  step(shapes + " make --out " + at("shapes") + " --count 1600 --per-archive 400 --side 64 --seed 5");
  step(shapes + " captions > " + at("captions.txt"));
  step(mpirun(2) + millrace + " train-autoencoder --config " MILLRACE_CONFIGS "/demo_autoencoder.yaml run.dir=" +
       at("vae") + " model.pipeline=" + (workshop() / "tiny").string() + " data.train.path=" + at("shapes"));
  step(mpirun(3) + millrace + " train --config " MILLRACE_CONFIGS "/demo.yaml roles.producers=1 run.dir=" + at("run") +
       " model.pipeline=" + at("vae/pipeline") + " data.train.path=" + at("shapes"));
  step(millrace + " export --run " + at("run") + " --out " + at("pipeline"));
  step(millrace + " generate --pipeline " + at("pipeline") + " --prompts " + at("captions.txt") + " --out " +
       at("images") + " generate.steps=20 generate.guidance_scale=4 generate.sampler=ddim generate.batch_size=24");
  const auto judged = shell(shapes + " judge --images " + at("images"));
  ASSERT_EQ(judged.exit_code, 0) << judged.output;
  const auto verdict = nlohmann::json::parse(judged.output.substr(judged.output.rfind('{')));
  EXPECT_EQ(verdict["images"], 24);
  // 24 colours and backgrounds and 23 shapes are usual. Somebody who guesses among four colours gets 20 of 24 once in
  // 300 million times, who guesses between two backgrounds gets 22 once in 55,000 times, who guesses among three shapes
  // gets 18 once in 28,000 times.
  EXPECT_GE(verdict["right_colours"], 20) << judged.output;
  EXPECT_GE(verdict["right_backgrounds"], 22) << judged.output;
  EXPECT_GE(verdict["right_shapes"], 18) << judged.output;
}

}  // namespace
}  // namespace millrace::e2e
