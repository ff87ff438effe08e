// Weights with NaN or infinity in them are refused before anything is made of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/program.h"
#include "e2e/weights.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"

namespace millrace::e2e {
namespace {

using testing::HasSubstr;

// A copy of the tiny pipeline with `value` in one tensor of FILE; returns that file.
fs::path broken_pipeline(const std::string& name, const std::string& file, const std::string& tensor, float value) {
  const auto folder = workshop() / name;
  fs::copy(workshop() / "tiny", folder, fs::copy_options::recursive);
  set_first_number(folder / file, tensor, value);
  return folder / file;
}

void expect_refused(const std::string& command, const fs::path& file, const std::string& problem) {
  const auto outcome = shell(command);
  EXPECT_EQ(outcome.exit_code, 74) << command;
  EXPECT_THAT(outcome.output, testing::HasSubstr(file.string() + ": " + problem)) << command;
}

TEST(NonFinite, PretrainedUNetIsRefused) {
  const auto file = broken_pipeline("nan-unet", "unet/diffusion_pytorch_model.safetensors", "conv_out.bias", NAN);
  const auto pipeline = (workshop() / "nan-unet").string(), problem = std::string("'conv_out.bias' holds nan");
  const auto start = [&](const std::string& run) {
    return train(run, "'duration=1 steps' model.unet.init=pretrained model.pipeline=" + pipeline);
  };
  expect_refused(start("nan-alone"), file, problem);
  expect_refused(mpirun(3) + start("nan-apart") + " roles.producers=1", file, problem);
  for (const char* run : {"nan-alone", "nan-apart"})
    EXPECT_FALSE(fs::exists(workshop() / run / "checkpoints/step-00000001")) << run;
  expect_refused(millrace + " generate run.device=cpu --pipeline " + pipeline + " --prompt x --out " +
                     (workshop() / "nan-pictures").string(),
                 file, problem);
  expect_refused(millrace + " inspect " + pipeline, file, problem);
}

TEST(NonFinite, EncodersAreRefused) {
  const auto vae =
      broken_pipeline("inf-vae", "vae/diffusion_pytorch_model.safetensors", "encoder.conv_in.bias", INFINITY);
  expect_refused(train("inf", "'duration=1 steps' model.pipeline=" + (workshop() / "inf-vae").string()), vae,
                 "'encoder.conv_in.bias' holds inf");
  const std::string embedding = "text_model.embeddings.position_embedding.weight";
  const auto text = broken_pipeline("nan-text", "text_encoder/model.safetensors", embedding, -INFINITY);
  expect_refused(millrace + " preprocess run.device=cpu transform.resolution=32 model.pipeline=" +
                     (workshop() / "nan-text").string() + " run.dir=" + (workshop() / "nan-preprocess").string() +
                     " data.train.path=" + (workshop() / "shapes").string() +
                     " encode.cache=" + (workshop() / "nan-cache").string(),
                 text, "'" + embedding + "' holds -inf");
}

// NaN in a tensor of a checkpoint of one rank; sizes and digests are made right again.
fs::path spoil(const fs::path& checkpoint, const std::string& tensor) {
  auto manifest = nlohmann::json::parse(read_file(checkpoint / "MANIFEST.json"));
  const auto file = checkpoint / manifest["files"][0]["name"].get<std::string>();
  set_first_number(file, tensor, NAN);
  manifest["files"][0]["xxh3_128"] = hash_file(file).hex();
  const auto text = manifest.dump(1) + "\n";
  write_file_atomically(checkpoint / "MANIFEST.json", text);
  write_file_atomically(checkpoint / "MANIFEST.xxh3", hash128(text).hex() + "  MANIFEST.json\n");
  return file;
}

TEST(NonFinite, CheckpointIsPassedOverForAnOlderOne) {
  const auto first = shell(train("spoilt", "'duration=8 steps'"));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const auto run = workshop() / "spoilt", newest = run / "checkpoints/step-00000008";
  const auto ids = read(run / "ids.jsonl");
  const auto file = spoil(newest, "exp_avg/conv_in.bias");
  const std::string problem = "'exp_avg/conv_in.bias' holds nan";

  expect_refused(millrace + " export --checkpoint " + newest.string() + " --out " + (workshop() / "e").string(), file,
                 problem);
  expect_refused(millrace + " inspect " + newest.string(), file, problem);
  // What its manifest says is told all the same, and that it is a checkpoint also where that is gone.
  const auto told =
      nlohmann::json::parse(shell(millrace + " inspect --json " + newest.string() + " 2>/dev/null").output);
  EXPECT_FALSE(told["valid"]);
  EXPECT_EQ(told["step"], 8);
  EXPECT_GT(told["tensors"], 0);
  fs::create_directories(workshop() / "bare/step-00000012");
  const auto bare = nlohmann::json::parse(
      shell(millrace + " inspect --json " + (workshop() / "bare/step-00000012/").string() + " 2>/dev/null").output);
  EXPECT_EQ(bare["kind"], "checkpoint");
  EXPECT_EQ(bare["step"], 12);
  expect_refused(train("spoilt-from", "'duration=12 steps' checkpoint.resume=" + newest.string()), file, problem);

  const auto again = shell(train("spoilt", "'duration=12 steps'"));
  ASSERT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr(file.string() + ": " + problem));
  const auto ids_again = read(run / "ids.jsonl");
  EXPECT_EQ(ids_again.substr(0, ids.size()), ids);
  EXPECT_EQ(lines(run / "ids.jsonl").size(), 12u);

  const char* kinds[] = {"weights", "exp_avg_sq", "ema"};
  const char* const kept[] = {"step-00000004", "step-00000008", "step-00000012"};  // beside the abandoned one
  for (int i = 0; i < 3; ++i) spoil(run / "checkpoints" / kept[i], std::string(kinds[i]) + "/conv_out.weight");
  const auto none = shell(train("spoilt", "'duration=16 steps'"));
  EXPECT_EQ(none.exit_code, 74);
  for (const char* k : kinds) EXPECT_THAT(none.output, HasSubstr("'" + std::string(k) + "/conv_out.weight' holds nan"));
}

}  // namespace
}  // namespace millrace::e2e
