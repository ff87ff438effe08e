#include "millrace/io/weights.h"
#include "millrace/io/safetensors_writer.h"
#include "support.h"

namespace millrace::test {
namespace {

// A file with one tensor `name` that holds `text`.
void save(const fs::path& path, const std::string& name, const std::string& text) {
  save_safetensors(path, {{{name, DType::u8, {static_cast<std::int64_t>(text.size())}}, as_bytes(text)}});
}

constexpr const char* stem = "diffusion_pytorch_model";

TEST(Weights, FindsEverySpelling) {
  struct Case {
    std::string file, variant;
  };
  const std::string s = stem;
  for (const Case& c : std::vector<Case>{{s + ".safetensors", ""},
                                         {s + ".safetensors.index.json", ""},
                                         {s + ".fp16.safetensors", "fp16"},
                                         {s + ".safetensors.index.fp16.json", "fp16"},
                                         {s + ".safetensors.fp16.index.json", "fp16"},
                                         {s + ".fp16.safetensors.index.json", "fp16"}}) {
    const ScratchDirectory scratch;
    scratch.write(c.file, "");
    EXPECT_EQ(try_find_weights(scratch.path(), stem, c.variant), scratch / c.file);
    EXPECT_FALSE(try_find_weights(scratch.path(), stem, "non_ema"));
    EXPECT_FALSE(try_find_weights(scratch.path(), "model", c.variant));
  }
}

TEST(Weights, ReadsASingleFileAndItsVariant) {
  const ScratchDirectory scratch;
  save(scratch / "model.safetensors", "w", "plain");
  save(scratch / "model.fp16.safetensors", "w", "half");
  EXPECT_EQ(as_text(open_weights(scratch.path(), "model").bytes("w")), "plain");
  const Weights half = open_weights(scratch.path(), "model", "fp16");
  EXPECT_EQ(as_text(half.bytes("w")), "half");
  EXPECT_EQ(half.info("w").dtype, DType::u8);
  EXPECT_EQ(error_of([&] { half.bytes("v"); }).exit(), Exit::io);
}

// A component that was saved in shards first and whole later.
TEST(Weights, DiffusersTakesTheIndexOfBothAndTransformersTheFile) {
  for (const std::string name : {"diffusion_pytorch_model", "model"}) {
    const ScratchDirectory scratch;
    const std::string one = name + "-00001-of-00002.safetensors", two = name + "-00002-of-00002.safetensors";
    save(scratch / one, "w", "one");
    save(scratch / two, "v", "two");
    scratch.write(name + ".safetensors.index.json",
                  R"({"metadata":{"total_size":6},"weight_map":{"v":")" + two + R"(","w":")" + one + R"("}})");
    const Weights shards = open_weights(scratch.path(), name);
    EXPECT_EQ(shards.names(), (std::vector<std::string>{"v", "w"}));
    EXPECT_EQ(as_text(shards.bytes("w")), "one");
    EXPECT_EQ(shards.file_of("v").filename(), two);
    save(scratch / (name + ".safetensors"), "w", "single");
    EXPECT_EQ(as_text(open_weights(scratch.path(), name).bytes("w")), name == "model" ? "single" : "one");
  }
}

TEST(Weights, AVariantAloneIsNamed) {
  for (const char* file : {"model.fp16.safetensors", "model.fp16-00001-of-00002.safetensors"}) {
    const ScratchDirectory scratch;
    save(scratch / file, "w", "half");
    const Error error = error_of([&] { open_weights(scratch.path(), "model"); });
    EXPECT_NE(std::string_view(error.what()).find(file), std::string_view::npos) << error.what();
  }
}

TEST(Weights, RefusesABrokenIndex) {
  const ScratchDirectory scratch;
  save(scratch / "a.safetensors", "w", "one");
  save(scratch / "b.safetensors", "w", "again");
  for (const char* index : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"w":3}})",
                            R"({"weight_map":{"w":"missing.safetensors"}})", R"({"weight_map":{"v":"a.safetensors"}})",
                            R"({"weight_map":{"w":"../a.safetensors"}})", R"({"weight_map":{"w":"/etc/passwd"}})",
                            R"({"weight_map":{"w":"a.safetensors","v":"b.safetensors"}})",
                            R"({"weight_map":{"w":"a.safetensors","w":"b.safetensors"}})"}) {
    scratch.write("model.safetensors.index.json", index);
    EXPECT_EQ(error_of([&] { open_weights(scratch.path(), "model"); }).exit(), Exit::io) << index;
  }
}

TEST(Weights, PickledWeightsAreRefusedWithACure) {
  for (const char* name : {"diffusion_pytorch_model.bin", "pytorch_model.bin"}) {
    const ScratchDirectory scratch;
    scratch.write(name, "PK");
    const Error error = error_of([&] { open_weights(scratch.path(), stem); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find(name), std::string::npos);
    EXPECT_NE(error.hint().find("save_pretrained"), std::string::npos);
  }
}

TEST(Weights, SaysWhatItLookedFor) {
  const ScratchDirectory scratch;
  const Error error = error_of([&] { open_weights(scratch.path(), "model", "fp16"); });
  EXPECT_NE(error.hint().find("model.fp16.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
