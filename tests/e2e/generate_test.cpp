// Pictures of a list of prompts: over ranks, gone on with, and what their files say.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "e2e/runs.h"
#include "e2e/weights.h"
#include "millrace/image/png_text.h"

namespace millrace::e2e {
namespace {

using Json = nlohmann::json;

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

// Seven rows, which neither units of two nor three ranks share evenly; one of them has a seed of its own.
std::string prompts() {
  static const auto file = [] {
    const auto path = workshop() / "rows.jsonl";
    std::ofstream out(path);
    for (int n = 0; n < 7; ++n) {
      Json row = {{"prompt", fmt::format("bild {} \"größer\" <b>", n)}};
      if (n == 4) row.update({{"seed", 123456789012345}, {"negative_prompt", "blurry"}});
      out << row << "\n";
    }
    return path;
  }();
  return file.string();
}

// One thread each: ranks that share the machine get fewer of them, and sums would be rounded otherwise.
std::string generate_list(const std::string& list, const std::string& out, const std::string& settings = "") {
  return millrace + " generate run.device=cpu threads=1 --pipeline " + at("tiny") + " --prompts " + list + " --out " +
         at(out) + " generate.steps=2 generate.batch_size=2 generate.seed=10 " + settings;
}

std::string generate(const std::string& out, const std::string& settings = "") {
  return generate_list(prompts(), out, settings);
}

std::string picture(const std::string& out, int index) {
  return (workshop() / out / fmt::format("{:05d}.png", index)).string();
}

std::set<int> differing(const std::string& left, const std::string& right) {
  std::set<int> indices;
  for (int n = 0; n < 7; ++n)
    if (read(picture(left, n)) != read(picture(right, n))) indices.insert(n);
  return indices;
}

// The pictures that the others are compared with.
const std::string& straight() {
  static const std::string folder = [] {
    expect_success(mpirun(1) + generate("straight", "generate.save_latents=true"));
    return std::string("straight");
  }();
  return folder;
}

void copy_folder(const std::string& from, const std::string& to) {
  fs::copy(workshop() / from, workshop() / to, fs::copy_options::recursive);
}

// Of five ranks one has no unit.
TEST(Generate, RanksShareTheListAndPaintTheSame) {
  for (const int ranks : {3, 5}) {
    const auto folder = fmt::format("on-{}", ranks);
    expect_success(mpirun(ranks) + generate(folder, "generate.save_latents=true"));
    EXPECT_EQ(differing(straight(), folder), std::set<int>()) << ranks;
    for (const char* file : {"grid.png", "images.jsonl", "latents.safetensors"})
      EXPECT_EQ(read(workshop() / straight() / file), read(workshop() / folder / file)) << ranks << " " << file;
  }
  EXPECT_NE(read(picture(straight(), 0)), read(picture(straight(), 1)));
}

TEST(Generate, PicturesSayWhatTheyWereMadeFrom) {
  expect_success(generate("told",
                          "generate.sampler=ddim generate.guidance_scale=3.5 generate.guidance_rescale=0.5 "
                          "generate.width=48 model.dtype=bfloat16"));
  const auto text = read_png_text(read(picture("told", 4))).value();
  EXPECT_EQ(text.at("prompt"), "bild 4 \"größer\" <b>");
  EXPECT_EQ(text.at("negative_prompt"), "blurry");
  EXPECT_EQ(text.at("seed"), "123456789012345");
  EXPECT_EQ(text.at("steps"), "2");
  EXPECT_EQ(text.at("sampler"), "DDIMScheduler");
  EXPECT_EQ(text.at("guidance_scale"), "3.5");
  EXPECT_EQ(text.at("guidance_rescale"), "0.5");
  EXPECT_EQ(text.at("dtype"), "bfloat16");
  EXPECT_EQ(text.at("size"), "48x32");
  EXPECT_EQ(read_png_text(read(picture("told", 5))).value().at("seed"), "15");
  const auto rows = lines(workshop() / "told/images.jsonl");
  ASSERT_EQ(rows.size(), 7u);
  EXPECT_EQ(rows[4]["seed"], 123456789012345);
  EXPECT_EQ(rows[5]["seed"], 15);
}

TEST(Generate, TheSameCommandPaintsWhatIsMissing) {
  copy_folder(straight(), "again");
  fs::remove(picture("again", 1));
  fs::resize_file(picture("again", 3), fs::file_size(picture("again", 3)) - 5);
  fs::copy_file(picture("again", 0), picture("again", 6),
                fs::copy_options::overwrite_existing);  // whole, of another row
  const auto old = fs::last_write_time(picture("again", 0));
  const auto outcome = shell(mpirun(2) + generate("again"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "7 images in " + at("again") + ", 4 of them were there already");
  EXPECT_EQ(differing(straight(), "again"), std::set<int>());
  EXPECT_EQ(fs::last_write_time(picture("again", 0)), old);
  EXPECT_EQ(read(workshop() / straight() / "grid.png"), read(workshop() / "again/grid.png"));

  expect_mentions(outcome, at("again") + "/latents.safetensors is of an earlier command");

  // Other settings, other pictures: nothing of before is left.
  expect_success(generate("other", "generate.guidance_scale=2"));
  expect_success(generate("again", "generate.guidance_scale=2"));
  EXPECT_EQ(differing("other", "again"), std::set<int>());
  // So are other weights, of whichever network: one after the other is replaced, and the first picture painted.
  expect_success(millrace + " init --preset tiny seed=7 --out " + at("tiny7") + " && cp -r " + at("tiny") + " " +
                 at("kept"));
  std::ofstream(workshop() / "first.jsonl") << lines(prompts()).front() << "\n";
  const auto networks = {"unet/diffusion_pytorch_model.safetensors", "vae/diffusion_pytorch_model.safetensors",
                         "text_encoder/model.safetensors"};
  const auto take_from = [](const std::string& pipeline, const std::string& weights) {
    fs::copy_file(workshop() / pipeline / weights, workshop() / "tiny" / weights, fs::copy_options::overwrite_existing);
  };
  for (const auto* weights : networks) {
    const auto before = read(picture("again", 0));
    take_from("tiny7", weights);
    const auto repainted = shell(generate_list(at("first.jsonl"), "again", "generate.guidance_scale=2"));
    EXPECT_EQ(repainted.exit_code, 0) << repainted.output;
    EXPECT_EQ(repainted.output.find("already"), std::string::npos) << weights << "\n" << repainted.output;
    EXPECT_FALSE(read(picture("again", 0)) == before) << weights;
  }
  for (const auto* weights : networks) take_from("kept", weights);
}

// Were they those of the first batch each time, pictures of one prompt would come again.
TEST(Generate, EachPictureBeginsWithItsOwnLatents) {
  std::ofstream list(workshop() / "same.jsonl");
  for (int n = 0; n < 7; ++n) list << "{\"prompt\": \"a\"}\n";
  list.close();
  expect_success(
      generate_list(at("same.jsonl"), "same",
                    "generate.save_latents=true generate.initial_latents=" + at(straight() + "/latents.safetensors")));
  const auto made = read_weights(at("same/latents.safetensors")).at("latents");
  const auto of_picture = std::ssize(made) / 7;
  std::set<std::vector<float>> pictures;
  for (auto first = made.begin(); first != made.end(); first += of_picture) pictures.emplace(first, first + of_picture);
  EXPECT_EQ(pictures.size(), 7u);
}

// What a longer list has left is not removed, but told of: whoever scores the folder would score it, too.
TEST(Generate, TellsOfPicturesThatALongerListHasLeft) {
  copy_folder(straight(), "shorter");
  std::ofstream(workshop() / "three.jsonl") << "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n";
  const auto outcome = shell(generate_list(at("three.jsonl"), "shorter"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "4 pictures of another list are still in " + at("shorter") + ": 00003.png to 00006.png");
  EXPECT_TRUE(fs::exists(picture("shorter", 6)));
  EXPECT_EQ(lines(workshop() / "shorter/images.jsonl").size(), 3u);
}

// Whoever scores the folder behind a kill by images.jsonl pairs no picture with another one's caption.
TEST(Generate, AStoppedListLeavesNoPictureOfTheOneBeforeUnderItsNames) {
  copy_folder(straight(), "relisted");
  std::ofstream(workshop() / "other.jsonl") << "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n";
  const auto command = generate_list(at("other.jsonl"), "relisted");
  const auto outcome = shell("MILLRACE_INJECT=kill@*:*:rename=relisted/00002.png " +
                             std::string(MILLRACE_INJECT_BINARY) + command.substr(millrace.size()));
  EXPECT_EQ(outcome.exit_code, 137) << outcome.output;
  EXPECT_EQ(lines(workshop() / "relisted/images.jsonl").size(), 3u);
  EXPECT_FALSE(fs::exists(workshop() / "relisted/grid.png"));
  EXPECT_TRUE(fs::exists(picture("relisted", 0)));
  EXPECT_FALSE(fs::exists(picture("relisted", 2)));
  EXPECT_TRUE(fs::exists(picture("relisted", 3))) << "which the list does not name";
}

TEST(Generate, TellsOfPromptsWhoseEndIsNotSeen) {
  std::string prompt = "a";
  for (int i = 0; i < 80; ++i) prompt += " cat";
  std::ofstream(workshop() / "long.txt") << "a short one\n" << prompt << "\n";
  const auto outcome = shell(generate_list(at("long.txt"), "long") + " --dry-run");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome,
                  "1 of 2 prompts have more than 75 tokens, of which the text encoder sees the first 75: \"a cat");
}

TEST(Generate, LatentsAreOfAllPicturesAlsoWhereSomeAreThere) {
  copy_folder(straight(), "latents");
  fs::remove(picture("latents", 2));
  const auto first = read(workshop() / "latents/latents.safetensors");
  const auto outcome = shell(generate("latents", "generate.save_latents=true"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "the 6 pictures that are there already are painted anew");
  EXPECT_EQ(read(workshop() / "latents/latents.safetensors"), first);
}

TEST(Generate, GoesOnAfterItWasKilledOrTold) {
  for (const auto* signal : {"KILL", "TERM"}) {
    const auto folder = fmt::format("stopped-{}", signal);
    const auto command = generate(folder);
    // It stands still before the first picture of its second unit.
    const auto stopped =
        shell(fmt::format("(exec env 'MILLRACE_INJECT=stop@*:*:rename={}/00002.png' {}) & pid=$!; {}; kill -{} $pid; "
                          "kill -CONT $pid; wait $pid",
                          folder, MILLRACE_INJECT_BINARY + command.substr(millrace.size()),
                          wait_for("/proc/$pid/status", "State:.T"), signal));
    EXPECT_EQ(stopped.exit_code, std::string(signal) == "TERM" ? 75 : 137) << stopped.output;
    EXPECT_FALSE(fs::exists(picture(folder, 6))) << "it was done too early to tell";
    const auto outcome = shell(command);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_mentions(outcome, "were there already");
    EXPECT_EQ(differing(straight(), folder), std::set<int>());
  }
}

}  // namespace
}  // namespace millrace::e2e
