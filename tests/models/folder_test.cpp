#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include <functional>
#include <set>
#include <tuple>

#include "core/temp_dir.h"
#include "devices.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/json.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/weights.h"
#include "model_index.h"
#include "test_data.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::error_of;
using test::TempDir;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const fs::path golden = test::data_dir() / "folder";

PipelineFolder open_golden(const fs::path& name) {
  return PipelineFolder::open(golden / name);
}

#define EXPECT_FAILS(action, wanted_exit, message)            \
  do {                                                        \
    const Error failure = error_of([&] { action; });          \
    EXPECT_EQ(failure.exit(), wanted_exit) << failure.what(); \
    EXPECT_THAT(failure.what(), message);                     \
  } while (false)

// Shapes, sums and last numbers against those that the reference library wrote down.
void expect_reference(const torch::nn::Module& module, const char* component) {
  const json expected = read_json(golden / "expected.json").at(component);
  const Tensors tensors = weights_of(module);
  EXPECT_EQ(tensors.size(), expected.size());
  for (const auto& [name, summary] : expected.items()) {
    ASSERT_TRUE(tensors.contains(name)) << name;
    const torch::Tensor tensor = tensors.at(name).cpu();
    EXPECT_EQ(json(tensor.sizes().vec()), summary.at(0)) << name;
    EXPECT_NEAR(tensor.to(torch::kFloat64).sum().item<double>(), summary.at(1).get<double>(), 1e-9) << name;
    EXPECT_EQ(tensor.flatten()[-1].item<double>(), summary.at(2).get<double>()) << name;
  }
}

// `second` holds exactly the numbers of `first` after rounding to `dtype`.
void expect_rounded(const torch::nn::Module& first, const torch::nn::Module& second, torch::Dtype dtype) {
  const Tensors a = weights_of(first), b = weights_of(second);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_TRUE(torch::equal(tensor.to(dtype).to(torch::kFloat32), b.at(name).to(torch::kCPU, torch::kFloat32)))
        << name;
  }
}

UNet2DConditionModel unet_of(const fs::path& folder, std::string_view variant = "",
                             torch::Dtype dtype = torch::kFloat32, torch::Device device = torch::kCPU) {
  return open_golden(folder).load_unet(device, dtype, variant);
}
AutoencoderKL vae_of(const fs::path& folder, torch::Device device = torch::kCPU) {
  return open_golden(folder).load_vae(device, torch::kFloat32);
}
CLIPTextModel text_of(const fs::path& folder, std::string_view variant = "", torch::Device device = torch::kCPU) {
  return open_golden(folder).load_text_encoder(device, torch::kFloat32, variant);
}

class PipelineOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(PipelineOnDevice);

TEST_P(PipelineOnDevice, ReadsWhatDiffusersWrote) {
  const auto unet = unet_of("pipeline", "", torch::kFloat32, device());
  expect_reference(*unet, "unet");
  EXPECT_FALSE(unet->is_training());
  EXPECT_EQ(unet->parameters().front().device(), device());
  expect_reference(*vae_of("pipeline", device()), "vae");
  expect_reference(*text_of("pipeline", "", device()), "text_encoder");  // transformers 5 writes it without its prefix
}

TEST(LoadPipeline, BareComponentFolderIsEnough) {
  expect_reference(*unet_of("pipeline/unet"), "unet");
}

TEST(LoadPipeline, TakesPrefixAndPositionIds) {
  expect_reference(*text_of("text_encoder_prefixed"), "text_encoder");
  expect_reference(*text_of("text_encoder_position_ids"), "text_encoder");
}

TEST(LoadPipeline, TakesOldAttentionNamesAndNoScalingFactor) {
  expect_reference(*vae_of("vae_old_names"), "vae");
  expect_reference(*vae_of("vae_old_convolutions"), "vae");
}

TEST(LoadPipeline, TakesHalfPrecisionVariantsAndShards) {
  const auto unet = unet_of("pipeline");
  expect_rounded(*unet, *unet_of("pipeline", "fp16"), torch::kFloat16);
  expect_rounded(*unet, *unet_of("unet_bf16"), torch::kBFloat16);
  expect_reference(*unet_of("unet_sharded"), "unet");
  expect_rounded(*unet, *unet_of("unet_sharded", "fp16"), torch::kFloat16);
  expect_reference(*text_of("text_encoder_sharded"), "text_encoder");
  expect_rounded(*text_of("pipeline"), *text_of("pipeline", "fp16"), torch::kFloat16);
}

TEST_P(PipelineOnDevice, ConvertsToTheWantedType) {
  const auto unet = unet_of("pipeline", "", torch::kBFloat16, device());
  EXPECT_EQ(unet->parameters().front().scalar_type(), torch::kBFloat16);
  expect_rounded(*unet_of("pipeline"), *unet, torch::kBFloat16);
}

TEST(LoadPipeline, ReadsTheScheduler) {
  const SchedulerConfig scheduler = open_golden("pipeline").scheduler();
  EXPECT_EQ(scheduler.scheduler_class, SchedulerClass::pndm);
  EXPECT_EQ(scheduler.beta_start, 0.00085);
}

PipelineExport export_of_golden() {
  const PipelineFolder source = open_golden("pipeline");
  PipelineExport pipeline;
  pipeline.source = golden / "pipeline";
  pipeline.replacements["unet"] = {.config = source.config("unet"),
                                   .weights = {{"", weights_of(*unet_of("pipeline"))}}};
  pipeline.card = {"A test", {{"steps", "7"}}};
  return pipeline;
}

// A copy of the golden pipeline that a test may damage.
class DamagedPipeline : public testing::Test {
 protected:
  void SetUp() override { fs::copy(golden / "pipeline", folder, fs::copy_options::recursive); }

  void edit_json(const fs::path& file, const std::function<void(json&)>& change) {
    json content = read_json(folder / file);
    change(content);
    write_file_atomically(folder / file, format_json(content));
  }
  void load_unet() { PipelineFolder::open(folder).load_unet(torch::kCPU, torch::kFloat32); }
  json problems() { return inspect_pipeline(folder).at("problems"); }

  TempDir dir;
  fs::path folder = dir / "pipeline";
  fs::path unet_weights = folder / "unet/diffusion_pytorch_model.safetensors";
};

TEST_F(DamagedPipeline, NoSuchFolder) {
  EXPECT_FAILS(PipelineFolder::open(dir / "nowhere"), Exit::io, HasSubstr("nowhere"));
  EXPECT_FAILS(PipelineFolder::open(dir.path()), Exit::io, HasSubstr("model_index.json"));
}

// As transformers saves them: also of the class with a projection, and beside its tokenizer.
TEST_F(DamagedPipeline, ABareTextEncoderIsKnownByEachOfItsTypes) {
  const fs::path bare = folder / "text_encoder";
  for (const char* type : {"clip_text_model", "clip_text_model_with_projection"}) {
    edit_json("text_encoder/config.json", [&](json& config) { config["model_type"] = type; });
    EXPECT_EQ(PipelineFolder::open(bare).component("text_encoder"), bare) << type;
    PipelineFolder::open(bare).load_text_encoder(torch::kCPU, torch::kFloat32);
  }
  fs::copy(folder / "tokenizer/tokenizer.json", bare);
  const auto both = PipelineFolder::open(bare);
  EXPECT_TRUE(both.has("text_encoder") && both.has("tokenizer"));
  fs::remove(bare / "model.safetensors");  // the model that the tokenizer belongs to is elsewhere
  fs::remove(bare / "model.fp16.safetensors");
  EXPECT_FALSE(PipelineFolder::open(bare).has("text_encoder"));
  edit_json("text_encoder/config.json", [](json& config) { config["model_type"] = "bert"; });
  EXPECT_FALSE(PipelineFolder::open(bare).has("text_encoder"));
}

TEST_F(DamagedPipeline, ATokenizerThatCannotBeReadIsAProblem) {
  EXPECT_THAT(problems(), IsEmpty());
  edit_json("tokenizer/tokenizer.json", [](json& tokenizer) { tokenizer["model"]["vocab"].erase("w"); });
  EXPECT_THAT(problems(), Contains(HasSubstr("token 'w' is not in the vocabulary")));
  fs::remove(folder / "tokenizer/tokenizer.json");
  EXPECT_THAT(problems(), Contains(HasSubstr("vocab.json")));
}

TEST_F(DamagedPipeline, MissingComponentIsNamed) {
  fs::remove_all(folder / "vae");
  const Error error = error_of([&] { PipelineFolder::open(folder).load_vae(torch::kCPU, torch::kFloat32); });
  EXPECT_THAT(error.what(), HasSubstr("pipeline has no part vae"));
  EXPECT_THAT(error.hint(), HasSubstr("link the missing one"));
  EXPECT_THAT(problems(), Contains(HasSubstr("has no part vae")));
}

// By class and shape together: plain U-Nets lie under such classes, too.
TEST_F(DamagedPipeline, UNetsOfOtherPipelinesAreRefused) {
  const auto call_it = [&](const char* class_name) {
    edit_json("model_index.json", [&](json& index) { index["_class_name"] = class_name; });
  };
  const auto set_in_unet = [&](const char* key, const json& value) {
    edit_json("unet/config.json", [&](json& config) { config[key] = value; });
  };
  const std::tuple<const char*, const char*, json> others[] = {
      {"StableDiffusionXLPipeline", "addition_embed_type", "text_time"},
      {"StableDiffusionInpaintPipeline", "in_channels", 9},
      {"StableDiffusionInstructPix2PixPipeline", "in_channels", 8},
      {"StableUnCLIPPipeline", "class_embed_type", "projection"},
      {"StableUnCLIPPipeline", "class_embeddings_concat", true}};
  for (const auto& [name, key, value] : others) {
    call_it(name);
    load_unet();
    const json usual = read_json(folder / "unet/config.json").at(key);
    set_in_unet(key, value);
    const std::string message = std::string("pipeline is a ") + name;
    EXPECT_FAILS(load_unet(), Exit::io, HasSubstr(message));
    EXPECT_FAILS(PipelineFolder::open(folder).config("unet"), Exit::io, HasSubstr(message));
    PipelineFolder::open(folder).load_vae(torch::kCPU, torch::kFloat32);  // is one of here
    set_in_unet(key, usual);
  }
  set_in_unet("num_class_embeds", false);
  load_unet();
  call_it("StableDiffusion3Pipeline");
  fs::remove_all(folder / "unet");  // it has a transformer
  EXPECT_FAILS(load_unet(), Exit::io, HasSubstr("is a StableDiffusion3Pipeline"));
}

TEST_F(DamagedPipeline, ASoundUNetForInpaintingIsDescribed) {
  edit_json("model_index.json", [](json& index) { index["_class_name"] = "StableDiffusionInpaintPipeline"; });
  edit_json("unet/config.json", [](json& config) { config["in_channels"] = 9; });
  fs::remove(folder / "unet/diffusion_pytorch_model.fp16.safetensors");
  save_weights(weights_of(*make_unet(read_json(folder / "unet/config.json"), 0)), folder / "unet", diffusers_stem);
  EXPECT_THAT(problems(), IsEmpty());
}

TEST(ModelIndex, AnEntryThatNamesNoClassIsThatOfNoPart) {
  for (const char* entry : {"[null, null]", R"(["diffusers", null])", R"([null, "UNet2DConditionModel"])"}) {
    EXPECT_TRUE(is_absent(json::parse(entry))) << entry;
    EXPECT_FALSE(is_listed(json::parse(entry))) << entry;
  }
  EXPECT_FALSE(is_absent(json::parse(R"(["diffusers", "UNet2DConditionModel"])")));
  EXPECT_TRUE(is_listed(json::parse(R"(["diffusers", "UNet2DConditionModel"])")));
  for (const char* setting : {"null", "false", "0.18215", R"("PNDM")", "[]", "[null]", "[null, null, null]",
                              R"([null, 1])", R"([["a"], null])", R"({"a": null, "b": null})"}) {
    EXPECT_FALSE(is_absent(json::parse(setting))) << setting;
    EXPECT_FALSE(is_listed(json::parse(setting))) << setting;
  }
}

TEST_F(DamagedPipeline, AnEntryWithoutAClassIsThatOfNoPart) {
  edit_json("model_index.json", [](json& index) {
    index["safety_checker"] = {"diffusers", nullptr};
    index["unet"] = {"diffusers", nullptr};
  });
  EXPECT_FALSE(PipelineFolder::open(folder).has("unet"));
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("has no part unet")));
  PipelineExport pipeline = export_of_golden();
  pipeline.source = folder;
  write_pipeline(dir / "out", pipeline);
  EXPECT_EQ(read_json(dir / "out/model_index.json").at("unet"), json({"diffusers", "UNet2DConditionModel"}));
  EXPECT_THAT(inspect_pipeline(dir / "out").at("problems"), IsEmpty());
}

TEST_F(DamagedPipeline, APartAloneHasNoOthers) {
  const auto missing = [](const fs::path& path) {
    return error_of([&] { PipelineFolder::open(path).component("vae"); }).hint();
  };
  EXPECT_THAT(missing(folder / "unet"), HasSubstr("give the folder above"));
  fs::remove(folder / "model_index.json");
  fs::remove_all(folder / "vae");
  EXPECT_THAT(missing(folder), HasSubstr("link the missing one"));
}

TEST_F(DamagedPipeline, ASingleFileIsToldHowToUnpack) {
  const auto hint_on = [](const fs::path& path) { return error_of([&] { PipelineFolder::open(path); }).hint(); };
  fs::create_directory(dir / "webui");
  write_file_atomically(dir / "webui/v1-inference.yaml", "x");
  EXPECT_THAT(hint_on(dir / "webui"), HasSubstr("millrace init"));
  for (const char* name : {"model.ckpt", "v1-5-pruned.safetensors", "sd2$(touch X).safetensors"}) {
    const std::string file = (dir / "webui" / name).string();
    write_file_atomically(file, "x");
    const auto unpacks = AllOf(HasSubstr("a single file such as " + file + ":"), HasSubstr("from_single_file('FILE')"));
    EXPECT_THAT(hint_on(file), unpacks);
    EXPECT_THAT(hint_on(dir / "webui"), unpacks);
    EXPECT_EQ(file.ends_with(".ckpt"), hint_on(file).find(".safetensors twin") != std::string::npos);
    fs::remove(file);
  }
  const std::string either = (dir / "webui/model.safetensors").string();  // a text encoder's, or all of a model
  write_file_atomically(either, "x");
  EXPECT_THAT(hint_on(either), HasSubstr("a single file such as " + either + ":"));
  EXPECT_THAT(hint_on(dir / "webui"), HasSubstr("millrace init"));
  fs::remove(folder / "unet/config.json");  // weights of one component
  EXPECT_THAT(hint_on(folder / "unet"), HasSubstr("millrace init"));
  EXPECT_THAT(hint_on("owner/name"), HasSubstr("snapshot_download"));
}

TEST_F(DamagedPipeline, MissingWeightsNameTheFolder) {
  fs::remove(unet_weights);
  EXPECT_FAILS(load_unet(), Exit::io, HasSubstr("unet"));
  EXPECT_FAILS(PipelineFolder::open(folder).load_unet(torch::kCPU, torch::kFloat32, "ema"), Exit::io,
               HasSubstr("unet"));
}

TEST_F(DamagedPipeline, PickledWeightsAreRefusedWithAHint) {
  fs::rename(unet_weights, folder / "unet/diffusion_pytorch_model.bin");
  const Error error = error_of([&] { load_unet(); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), HasSubstr("diffusion_pytorch_model.bin"));
  EXPECT_THAT(error.hint(), HasSubstr("convert"));
}

TEST_F(DamagedPipeline, TruncatedWeightsNameTheFile) {
  fs::resize_file(unet_weights, fs::file_size(unet_weights) - 100);
  EXPECT_FAILS(load_unet(), Exit::io, HasSubstr("diffusion_pytorch_model.safetensors"));
  EXPECT_THAT(problems(), Contains(HasSubstr("diffusion_pytorch_model.safetensors")));
}

TEST_F(DamagedPipeline, WeightsOfAnotherShapeNameFileAndTensor) {
  edit_json("unet/config.json", [](json& config) { config["cross_attention_dim"] = 16; });
  EXPECT_FAILS(load_unet(), Exit::io,
               AllOf(HasSubstr("unet/diffusion_pytorch_model.safetensors"), HasSubstr("attn2.to_k.weight"),
                     HasSubstr("(4, 8), not (4, 16)"), HasSubstr("more")));
  EXPECT_THAT(problems(), Contains(HasSubstr("attn2.to_k.weight")));
}

TEST_F(DamagedPipeline, MissingAndUnexpectedTensorsAreNamed) {
  Tensors tensors = weights_of(*unet_of("pipeline"));
  tensors.erase("conv_in.bias");
  tensors["conv_in.extra"] = torch::zeros({1});
  save_weights(tensors, folder / "unet", diffusers_stem);
  EXPECT_FAILS(load_unet(), Exit::io,
               AllOf(HasSubstr("'conv_in.bias' is missing"), HasSubstr("'conv_in.extra' is unexpected")));
}

TEST_F(DamagedPipeline, BrokenJsonNamesTheFile) {
  write_file_atomically(folder / "unet/config.json", "{\"sample_size\": ");
  EXPECT_FAILS(load_unet(), Exit::io, HasSubstr("unet/config.json"));
  EXPECT_THAT(problems(), Contains(HasSubstr("unet/config.json")));
  write_file_atomically(folder / "model_index.json", "[]");
  EXPECT_FAILS(PipelineFolder::open(folder), Exit::io, HasSubstr("model_index.json"));
}

TEST_F(DamagedPipeline, MissingShardNamesTheFile) {
  fs::remove_all(folder / "unet");
  fs::copy(golden / "unet_sharded", folder / "unet");
  load_unet();
  fs::remove(folder / "unet/diffusion_pytorch_model-00002-of-00002.safetensors");
  EXPECT_FAILS(load_unet(), Exit::io, HasSubstr("diffusion_pytorch_model-00002-of-00002.safetensors"));
}

// Changes one number of one tensor in a safetensors file.
void set_number(const fs::path& file, const std::string& tensor, std::int64_t element, double value) {
  const Tensors tensors = read_tensors(file);
  tensors.at(tensor).view(-1)[element] = value;
  write_tensors(file, tensors);
}

auto names_number(const fs::path& file, const std::string& rest) {
  return HasSubstr(file.string() + ": " + rest);
}

TEST_F(DamagedPipeline, NumbersThatAreNotFiniteAreNamed) {
  const fs::path vae = folder / "vae/diffusion_pytorch_model.safetensors",
                 text = folder / "text_encoder/model.safetensors";
  const fs::path half = folder / "unet/diffusion_pytorch_model.fp16.safetensors";
  set_number(unet_weights, "conv_in.weight", 5, NAN);
  set_number(half, "conv_out.bias", 3, -INFINITY);
  set_number(vae, "decoder.conv_out.bias", 0, INFINITY);
  const std::string embedding = "embeddings.token_embedding.weight";
  set_number(text, embedding, 8, NAN);

  const PipelineFolder pipeline = PipelineFolder::open(folder);
  for (const auto dtype : {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    EXPECT_FAILS(pipeline.load_unet(torch::kCPU, dtype), Exit::io,
                 names_number(unet_weights, "'conv_in.weight' holds nan (element 5)"));
    EXPECT_FAILS(pipeline.load_unet(torch::kCPU, dtype, "fp16"), Exit::io,
                 names_number(half, "'conv_out.bias' holds -inf (element 3)"));
  }
  EXPECT_FAILS(pipeline.load_vae(torch::kCPU, torch::kFloat32), Exit::io,
               names_number(vae, "'decoder.conv_out.bias' holds inf (element 0)"));
  EXPECT_FAILS(pipeline.load_text_encoder(torch::kCPU, torch::kFloat32), Exit::io,
               names_number(text, "'" + embedding + "' holds nan (element 8)"));
  EXPECT_THAT(problems(), AllOf(Contains(HasSubstr("'decoder.conv_out.bias' holds inf")),
                                Contains(HasSubstr("'" + embedding + "' holds nan")), SizeIs(3)));
}

TEST_F(DamagedPipeline, NumbersThatAreNotFiniteAreFoundInShards) {
  fs::remove_all(folder / "unet");
  fs::copy(golden / "unet_sharded", folder / "unet");
  const fs::path shard = folder / "unet/diffusion_pytorch_model-00002-of-00002.safetensors";
  const std::string tensor = read_tensors(shard).rbegin()->first;
  set_number(shard, tensor, 0, NAN);
  EXPECT_FAILS(load_unet(), Exit::io, names_number(shard, "'" + tensor + "' holds nan (element 0)"));
}

TEST_F(DamagedPipeline, NumbersTooLargeForTheWantedTypeAreNamed) {
  set_number(unet_weights, "conv_out.bias", 2, 1e5);
  load_unet();
  PipelineFolder::open(folder).load_unet(torch::kCPU, torch::kBFloat16);
  EXPECT_FAILS(PipelineFolder::open(folder).load_unet(torch::kCPU, torch::kFloat16), Exit::io,
               names_number(unet_weights, "'conv_out.bias' holds 100000 (element 2), which is inf in Half"));
  set_number(unet_weights, "conv_out.bias", 2, 3.4e38);  // above the middle of bfloat16's largest number and infinity
  load_unet();
  EXPECT_FAILS(PipelineFolder::open(folder).load_unet(torch::kCPU, torch::kBFloat16), Exit::io,
               HasSubstr("which is inf in BFloat16"));
}

TEST_F(DamagedPipeline, WeightsOfOtherTypesAreRefusedWithAHint) {
  for (const auto& [dtype, word] : {std::pair{torch::kFloat8_e4m3fn, "F8_E4M3"}, std::pair{torch::kFloat64, "F64"},
                                    std::pair{torch::kInt32, "I32"}}) {
    Tensors tensors = read_tensors(unet_weights);
    tensors["conv_out.bias"] = tensors.at("conv_out.bias").to(torch::kFloat32).to(dtype);
    write_tensors(unet_weights, tensors);
    const Error error = error_of([&] { load_unet(); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), names_number(unet_weights, fmt::format("'conv_out.bias' is {};", word)));
    EXPECT_THAT(error.hint(), HasSubstr("torch_dtype"));
  }
}

TEST(InspectPipeline, CountsWithoutProblems) {
  const json report = inspect_pipeline(golden / "pipeline");
  EXPECT_EQ(report.at("kind"), "pipeline");
  EXPECT_THAT(report.at("problems"), IsEmpty()) << report.at("problems");
  const json& unet = report.at("components").at("unet");
  EXPECT_EQ(unet.at("class"), "UNet2DConditionModel");
  EXPECT_EQ(unet.at("parameters"), 13604);  // as diffusers counts them
  EXPECT_EQ(unet.at("dtype"), "float32");
  EXPECT_EQ(unet.at("variants"), json({"", "fp16"}));
  EXPECT_EQ(report.at("components").at("vae").at("parameters"), 11827);
  EXPECT_EQ(report.at("components").at("text_encoder").at("parameters"), 2344);
  EXPECT_EQ(report.at("components").at("scheduler").at("class"), "PNDMScheduler");
  EXPECT_GT(report.at("components").at("tokenizer").at("tokens"), 512);  // those of bytes
  EXPECT_EQ(inspect_pipeline(golden / "unet_sharded").at("components").at("unet").at("tensors"), unet.at("tensors"));
}

// From any device, and whatever layout the weights have there.
TEST_P(PipelineOnDevice, SavesWhatTheReferenceWriterWrites) {
  const TempDir dir;
  const auto unet = unet_of("pipeline", "", torch::kFloat32, device());
  save_weights(weights_of(*unet), dir.path(), diffusers_stem);
  EXPECT_EQ(read_file(dir / "diffusion_pytorch_model.safetensors"),
            read_file(golden / "pipeline/unet/diffusion_pytorch_model.safetensors"));
  save_weights(weights_of(*unet), dir.path(), diffusers_stem, "fp16", torch::kFloat16);
  EXPECT_EQ(read_file(dir / "diffusion_pytorch_model.fp16.safetensors"),
            read_file(golden / "pipeline/unet/diffusion_pytorch_model.fp16.safetensors"));
  save_weights(weights_of(*unet), dir.path(), diffusers_stem, "", torch::kBFloat16);
  EXPECT_EQ(read_file(dir / "diffusion_pytorch_model.safetensors"),
            read_file(golden / "unet_bf16/diffusion_pytorch_model.safetensors"));
}

TEST(SaveWeights, WritesChannelsLastAsContiguous) {
  const TempDir dir;
  const torch::Tensor image = torch::rand({2, 3, 4, 5});
  save_weights({{"a", image.contiguous(at::MemoryFormat::ChannelsLast)}}, dir.path(), "x");
  save_weights({{"a", image}}, dir.path(), "y");
  EXPECT_EQ(read_file(dir / "x.safetensors"), read_file(dir / "y.safetensors"));
}

TEST(SaveWeights, ShardsAboveTheLimit) {
  const TempDir dir;
  const auto unet = unet_of("pipeline");
  fs::copy_file(golden / "pipeline/unet/config.json", dir / "config.json");
  save_weights(weights_of(*unet), dir.path(), diffusers_stem, "fp16", torch::kFloat16, 10'000);
  const json index = read_json(dir / "diffusion_pytorch_model.safetensors.index.fp16.json");
  EXPECT_EQ(index.at("metadata").at("total_size"), 2 * 13604);
  EXPECT_EQ(index.at("weight_map").at("conv_in.bias"), "diffusion_pytorch_model.fp16-00001-of-00003.safetensors");
  expect_rounded(*unet, *PipelineFolder::open(dir.path()).load_unet(torch::kCPU, torch::kFloat32, "fp16"),
                 torch::kFloat16);
}

TEST(WritePipeline, CopiesAndReplaces) {
  const TempDir dir;
  const fs::path out = dir / "out";
  PipelineExport pipeline = export_of_golden();
  pipeline.unet_sample_size = 4;
  Tensors raw = pipeline.replacements["unet"].weights[""];
  raw["conv_in.bias"] = torch::ones({4});
  pipeline.replacements["unet"].weights["non_ema"] = raw;
  write_pipeline(out, pipeline);

  const PipelineFolder written = PipelineFolder::open(out);
  expect_reference(*written.load_unet(torch::kCPU, torch::kFloat32), "unet");
  const auto non_ema = weights_of(*written.load_unet(torch::kCPU, torch::kFloat32, "non_ema"));
  EXPECT_TRUE(torch::equal(non_ema.at("conv_in.bias"), torch::ones({4})));
  EXPECT_EQ(written.config("unet").at("sample_size"), 4);
  EXPECT_EQ(written.config("unet").at("_diffusers_version"), diffusers_format_version);
  for (const char* file : {"vae/config.json", "vae/diffusion_pytorch_model.safetensors", "tokenizer/tokenizer.json",
                           "text_encoder/model.safetensors"}) {
    EXPECT_EQ(read_file(out / file), read_file(golden / "pipeline" / file)) << file;
  }
  json text = read_json(golden / "pipeline/text_encoder/config.json");
  ASSERT_EQ(text.at("dtype"), "float16");
  text["dtype"] = "float32";
  EXPECT_EQ(read_json(out / "text_encoder/config.json"), text);
  const json scheduler = read_json(out / "scheduler/scheduler_config.json");
  for (const char* key : {"steps_offset", "clip_sample", "timestep_spacing", "prediction_type"}) {
    EXPECT_TRUE(scheduler.contains(key)) << key;
  }
  EXPECT_THAT(read_file(out / "README.md"), AllOf(HasSubstr("license:"), HasSubstr("| steps | 7 |")));
  EXPECT_THAT(inspect_pipeline(out).at("problems"), IsEmpty());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1) << "a temporary is left";
}

// Its VAE and first text encoder; the U-Net is one of model.unet.config's shape.
TEST(WritePipeline, MakesAStableDiffusionPipelineOfOneTrainedOverAnother) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  json index = read_json(dir / "source/model_index.json");
  index["_class_name"] = "StableDiffusionXLPipeline";
  index["text_encoder_2"] = {"transformers", "CLIPTextModelWithProjection"};
  index["force_zeros_for_empty_prompt"] = true;
  index["unet"] = nullptr;
  write_file_atomically(dir / "source/model_index.json", format_json(index));
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  write_pipeline(dir / "out", pipeline);
  const json written = read_json(dir / "out/model_index.json");
  EXPECT_EQ(written.at("_class_name"), "StableDiffusionPipeline");
  EXPECT_FALSE(written.contains("text_encoder_2"));
  EXPECT_FALSE(written.contains("force_zeros_for_empty_prompt"));
  EXPECT_EQ(written.at("text_encoder"), json({"transformers", "CLIPTextModel"}));
  EXPECT_EQ(written.at("unet"), json({"diffusers", "UNet2DConditionModel"})) << "it is there, whatever the source says";
  EXPECT_THAT(inspect_pipeline(dir / "out").at("problems"), IsEmpty());
}

// As train-autoencoder makes one: a pipeline that lists what is not there does not load.
TEST(WritePipeline, KeepsAllPartsOfAPipelineWhoseUNetIsItsOwn) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  fs::copy(dir / "source/text_encoder", dir / "source/text_encoder_2", fs::copy_options::recursive);
  json index = read_json(dir / "source/model_index.json");
  index["_class_name"] = "StableDiffusionXLPipeline";
  index["text_encoder_2"] = {"transformers", "CLIPTextModelWithProjection"};
  index["low_res_scheduler"] = {"diffusers", "DDPMScheduler"};  // which is not there
  for (const auto& outside : std::vector<std::string>{"../beside", dir / "beside", ""}) index[outside] = {"a", "B"};
  fs::create_directory(dir / "beside");
  write_file_atomically(dir / "beside/config.json", R"({"model_type": "theirs"})");
  write_file_atomically(dir / "source/model_index.json", format_json(index));
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  pipeline.replacements.erase("unet");
  pipeline.unet_sample_size.reset();
  write_pipeline(dir / "out", pipeline);
  EXPECT_EQ(read_json(dir / "out/model_index.json").at("text_encoder_2"), index["text_encoder_2"]);
  EXPECT_TRUE(fs::exists(dir / "out/text_encoder_2/model.safetensors"));
  EXPECT_EQ(read_json(dir / "out/model_index.json").at("low_res_scheduler"), json({nullptr, nullptr}));
  EXPECT_EQ(read_file(dir / "beside/config.json"), R"({"model_type": "theirs"})");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 3);
}

// transformers would make a network of half precision, and diffusers feed its states to a U-Net in float32.
TEST(WritePipeline, AllPartsLoadAsFloat32) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  const fs::path config = dir / "source/text_encoder/config.json";
  json text = read_json(config);
  const auto exported = [&](const char* out) {
    write_file_atomically(config, format_json(text));
    PipelineExport pipeline = export_of_golden();
    pipeline.source = dir / "source";
    write_pipeline(dir / out, pipeline);
    return read_json(dir / out / "text_encoder/config.json");
  };
  text.erase("dtype");
  text.erase("torch_dtype");
  EXPECT_EQ(exported("untold").at("torch_dtype"), "float32");
  text["dtype"] = "float16";
  EXPECT_EQ(exported("new").at("dtype"), "float32");
  text.erase("dtype");
  text["torch_dtype"] = "float16";
  const json old = exported("old");
  EXPECT_EQ(old.at("torch_dtype"), "float32");
  text["torch_dtype"] = "float32";
  EXPECT_EQ(old, text) << "all else is the source's";
}

TEST(WritePipeline, LeavesOutASafetyCheckerThatWouldNotLoad) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  json index = read_json(dir / "source/model_index.json");
  index["safety_checker"] = {"stable_diffusion", "StableDiffusionSafetyChecker"};
  index["feature_extractor"] = {"transformers", "CLIPImageProcessor"};
  write_file_atomically(dir / "source/model_index.json", format_json(index));
  const auto exported = [&](const char* out) {
    PipelineExport pipeline = export_of_golden();
    pipeline.source = dir / "source";
    write_pipeline(dir / out, pipeline);
    return read_json(dir / out / "model_index.json").at("safety_checker");
  };
  for (const char* part : {"safety_checker", "feature_extractor"}) fs::create_directories(dir / "source" / part);
  write_file_atomically(dir / "source/safety_checker/config.json", R"({"model_type": "clip"})");
  write_file_atomically(dir / "source/feature_extractor/preprocessor_config.json", "{}");
  EXPECT_EQ(exported("without weights"), json({nullptr, nullptr}));
  fs::copy_file(dir / "source/text_encoder/model.safetensors", dir / "source/safety_checker/model.fp16.safetensors");
  EXPECT_EQ(exported("with a variant alone"), json({nullptr, nullptr}));
  write_file_atomically(dir / "source/safety_checker/pytorch_model.bin", "weights");
  EXPECT_EQ(exported("whole"), index["safety_checker"]);
  EXPECT_TRUE(fs::exists(dir / "whole/safety_checker/pytorch_model.bin"));
  fs::remove_all(dir / "source/feature_extractor");
  EXPECT_EQ(exported("without its extractor"), json({nullptr, nullptr}));
}

TEST(WritePipeline, RefusesAUsedFolderAndTakesAnEmptyOne) {
  const TempDir dir;
  fs::create_directory(dir / "out");
  write_pipeline(dir / "out/", export_of_golden());
  EXPECT_FAILS(write_pipeline(dir / "out", export_of_golden()), Exit::usage, HasSubstr("out"));
  fs::create_directory(dir / "elsewhere");
  fs::create_directory_symlink(dir / "elsewhere", dir / "link");
  write_pipeline(dir / "link", export_of_golden());
  EXPECT_TRUE(fs::exists(dir / "elsewhere/model_index.json"));
  fs::create_directory_symlink(dir / "nowhere", dir / "dangling");
  EXPECT_FAILS(write_pipeline(dir / "dangling", export_of_golden()), Exit::usage, HasSubstr("is not there"));
}

TEST(WritePipeline, RefusesToCopyNumbersThatAreNotFinite) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  const fs::path text = dir / "source/text_encoder/model.safetensors";
  set_number(dir / "source/text_encoder/model.fp16.safetensors", "final_layer_norm.bias", 1, NAN);
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  EXPECT_NO_THROW(write_pipeline(dir / "without", pipeline)) << "the fp16 file is not copied";
  set_number(text, "final_layer_norm.bias", 1, NAN);
  EXPECT_FAILS(write_pipeline(dir / "out", pipeline), Exit::io,
               names_number(text, "'final_layer_norm.bias' holds nan (element 1)"));
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(WritePipeline, LeavesNothingBehindWhenTheSourceIsIncomplete) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  fs::remove_all(dir / "source/tokenizer");
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  EXPECT_FAILS(write_pipeline(dir / "out", pipeline), Exit::io, HasSubstr("tokenizer"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
  pipeline.source = golden / "pipeline/unet";
  EXPECT_FAILS(write_pipeline(dir / "out", pipeline), Exit::io, HasSubstr("unet has no vae"));
}

TEST(WritePipeline, LeavesOutTheSameWeightsInOtherFormats) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  const fs::path text = dir / "source/text_encoder", vae = dir / "source/vae";
  for (const char* name : {"pytorch_model.bin", "flax_model.msgpack", "pytorch_model.fp16.bin"})
    write_file_atomically(text / name, "x");
  fs::rename(vae / "diffusion_pytorch_model.safetensors", vae / "diffusion_pytorch_model.fp16.safetensors");
  write_file_atomically(vae / "diffusion_pytorch_model.bin", "x");
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  write_pipeline(dir / "out", pipeline);
  const auto files = [&](const char* name) {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir / "out" / name)) found.insert(entry.path().filename().string());
    return found;
  };
  EXPECT_EQ(files("text_encoder"), (std::set<std::string>{"config.json", "model.safetensors"}));
  EXPECT_EQ(files("vae"), (std::set<std::string>{"config.json", "diffusion_pytorch_model.bin",
                                                 "diffusion_pytorch_model.fp16.safetensors"}))
      << "there are no others";
}

// A run that goes on from the U-Net needs no others.
TEST(WritePipeline, WarnsOfNetworksWithoutWeightsThatAreLoadedByDefault) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  const auto warnings = [&] {
    fs::remove_all(dir / "out");
    testing::internal::CaptureStderr();
    write_pipeline(dir / "out", pipeline);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings(), Not(HasSubstr("diffusers will not load")));
  const fs::path text = dir / "source/text_encoder", vae = dir / "source/vae";
  fs::remove(text / "model.safetensors");  // the variant fp16 stays
  fs::rename(vae / "diffusion_pytorch_model.safetensors", vae / "diffusion_pytorch_model.bin");
  const auto said = warnings();
  EXPECT_THAT(said,
              HasSubstr(text.string() + " holds only a variant of its weights, model.fp16.safetensors: diffusers will "
                                        "not load"));
  EXPECT_THAT(said, HasSubstr("pickled"));
}

TEST(WithSampleSize, IsReadBackAlsoInAnOldFolder) {
  const json old = {{"_diffusers_version", "0.6.0"}, {"sample_size", 64}};
  const auto read = UNet2DConditionConfig::from_json(with_sample_size(old, 32));
  EXPECT_EQ(read.sample_size.value(), std::vector<std::int64_t>(2, 32));
}

// The index that diffusers has written for this pipeline.
TEST(WritePipeline, NeedsNeitherAnIndexNorWhatIsReplaced) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  fs::remove(dir / "source/model_index.json");
  fs::remove_all(dir / "source/unet");
  EXPECT_EQ(find_missing_part(PipelineFolder::open(dir / "source")), "unet");
  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  write_pipeline(dir / "out", pipeline);
  EXPECT_EQ(read_json(dir / "out/model_index.json"), read_json(golden / "pipeline/model_index.json"));
  EXPECT_EQ(find_missing_part(PipelineFolder::open(dir / "out")), std::nullopt);
  EXPECT_THAT(inspect_pipeline(dir / "out").at("problems"), IsEmpty());
}

TEST(WriteComponentFolder, IsThatComponentAlone) {
  const TempDir dir;
  const PipelineFolder source = open_golden("pipeline");
  const auto vae = weights_of(*source.load_vae(torch::kCPU, torch::kFloat32));
  write_component_folder(dir / "out", "vae", {.config = source.config("vae"), .weights = {{"", vae}}});
  const PipelineFolder written = PipelineFolder::open(dir / "out");
  EXPECT_EQ(written.components().size(), 1);
  EXPECT_EQ(written.config("vae"), source.config("vae"));
  for (const auto& [name, tensor] : weights_of(*written.load_vae(torch::kCPU, torch::kFloat32)))
    EXPECT_TRUE(torch::equal(tensor, vae.at(name))) << name;
}

TEST(WritePipeline, FollowsTheLinksOfTheHubsCacheAndSkipsFilesThatBreakVariants) {
  const TempDir dir;
  fs::copy(golden / "pipeline", dir / "source", fs::copy_options::recursive);
  fs::rename(dir / "source/vae/config.json", dir / "blob");
  fs::create_symlink("../../blob", dir / "source/vae/config.json");
  write_file_atomically(dir / "source/vae/LICENSE", "text");
  json index = read_json(dir / "source/model_index.json");
  index["safety_checker"] = {"stable_diffusion", "StableDiffusionSafetyChecker"};
  index["feature_extractor"] = {"transformers", "CLIPFeatureExtractor"};
  write_file_atomically(dir / "source/model_index.json", format_json(index));
  fs::create_directory(dir / "source/feature_extractor");
  write_file_atomically(dir / "source/feature_extractor/preprocessor_config.json", "{}\n");

  PipelineExport pipeline = export_of_golden();
  pipeline.source = dir / "source";
  write_pipeline(dir / "out", pipeline);
  EXPECT_FALSE(fs::is_symlink(dir / "out/vae/config.json"));
  EXPECT_EQ(read_file(dir / "out/vae/config.json"), read_file(golden / "pipeline/vae/config.json"));
  EXPECT_FALSE(fs::exists(dir / "out/vae/LICENSE"));
  const json written = read_json(dir / "out/model_index.json");
  EXPECT_EQ(written.at("feature_extractor"), json({"transformers", "CLIPImageProcessor"}));
  EXPECT_EQ(written.at("safety_checker"), json({nullptr, nullptr})) << "its folder is not there";
}

// Tools beside the networks: whoever had them in the pipeline has them in the export.
TEST(WritePipeline, CopiesThePartsThatPipelinesMayHaveBesides) {
  const TempDir dir;
  const fs::path source = dir / "source";
  fs::copy(golden / "pipeline", source, fs::copy_options::recursive);
  json index = read_json(source / "model_index.json");
  index["feature_extractor"] = {"transformers", "CLIPImageProcessor"};
  index["image_encoder"] = {"transformers", "CLIPVisionModelWithProjection"};
  index["safety_checker"] = {"stable_diffusion", "StableDiffusionSafetyChecker"};
  index["requires_safety_checker"] = true;
  write_file_atomically(source / "model_index.json", format_json(index));
  const auto files = {"feature_extractor/preprocessor_config.json", "image_encoder/config.json",
                      "image_encoder/pytorch_model.bin", "safety_checker/config.json",
                      "safety_checker/pytorch_model.bin"};
  for (const fs::path file : files) {
    fs::create_directories((source / file).parent_path());
    write_file_atomically(source / file, "{\"of\": \"" + file.string() + "\"}\n");
  }
  PipelineExport pipeline = export_of_golden();
  pipeline.source = source;
  write_pipeline(dir / "out", pipeline);
  for (const fs::path file : files) EXPECT_EQ(read_file(dir / "out" / file), read_file(source / file)) << file;
  EXPECT_EQ(read_json(dir / "out/model_index.json"), index);
  EXPECT_THAT(inspect_pipeline(dir / "out").at("problems"), IsEmpty());
}

}  // namespace
}  // namespace millrace
