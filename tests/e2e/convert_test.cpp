// Configurations of open-diffusion, converted and run.
#include <gmock/gmock.h>

#include <sstream>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using Json = nlohmann::json;
using namespace std::string_literals;

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

// The sections that its templates have; `model` and `dataset` differ.
std::string theirs(const std::string& model, const std::string& dataset) {
  return R"(
wandb:
    api_key: ???
system:
    gradient_accumulation: 2
    batch_size: 2
    workers: 1
    dist_backend: ${distributed.dist_backend}
    dist_url: ${distributed.dist_url}
distributed: {dist_backend: 'nccl', dist_url: 'env://'}
experiment:
    log_dir: )" +
         at("logs") +
         R"(
    name: "mine"
    project: "diffusion"
    num_examples_to_see: 24
    save_only_most_recent: True
    save_every: 2
    requeue: True
    num_eval_images: 12
optimizer:
    name: adamw
    params: {learning_rate: 2e-04, beta1: 0.9, beta2: 0.98, weight_decay: 0.02, epsilon: 0.00000001}
)" + model +
         "    use_ema: False\n    mixed_precision: null\n    gradient_checkpointing: True\n    xformers: True\n" +
         dataset + R"(        batch_size: ${system.batch_size}
        workers: ${system.workers}
        num_examples_to_see: ${experiment.num_examples_to_see}
        resolution: 32
lr_scheduler:
    scheduler: "CosineWithWarmup"
    params: {learning_rate: "${optimizer.params.learning_rate}", warmup_length: 1}
novelty: {strength: 3}
)";
}

Outcome convert(const std::string& text, const std::string& name, const std::string& options = "") {
  const auto in = fs::path(name).filename().string() + ".in.yaml";
  std::ofstream(workshop() / in) << text;
  return shell(std::string(MILLRACE_CONFIGS) + "/../scripts/convert_config " + at(in) + " " + at(name + ".yaml") + " " +
               options);
}

// Without a trace of Python.
void expect_refusal(const Outcome& outcome, const std::string& text) {
  EXPECT_NE(outcome.exit_code, 0);
  expect_mentions(outcome, text);
  EXPECT_EQ(outcome.output.find("Traceback"), std::string::npos) << outcome.output;
}

Json resolved(const std::string& name) {
  const auto outcome = shell(millrace + " train --config " + at(name + ".yaml") + " --print-config=json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return Json::parse(outcome.output, nullptr, false);
}

const std::string shapes_dataset = "dataset:\n    type: WebDataset\n    params:\n        path: " + at("shapes") + "\n";

TEST(Convert, FromScratchWithAShapeOfItsOwn) {
  std::string model = "model:\n    pt_path: " + at("tiny") + "\n";
  for (const char* part : {"vae", "text_encoder", "tokenizer", "scheduler"})
    model += std::string("    ") + part + ": {pretrained: \"${model.pt_path}\"}\n";
  model += R"(    unet:
        target: UNet2DConditionModel
        params:
            act_fn: "silu"
            attention_head_dim: [2, 4]
            block_out_channels: [16, 32]
            center_input_sample: False
            cross_attention_dim: 64
            down_block_types: ["CrossAttnDownBlock2D", "DownBlock2D"]
            layers_per_block: 1
            norm_eps: 1e-05
            norm_num_groups: 8
            sample_size: 8
            up_block_types: ["UpBlock2D", "CrossAttnUpBlock2D"]
)";
  const auto outcome = convert(theirs(model, shapes_dataset), "scratch", "--gpus 2");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* name : {"novelty.strength: no counterpart", "wandb.api_key", "distributed.dist_backend",
                           "model.xformers", "batch.global = 8"})
    expect_mentions(outcome, name);
  const auto shape = Json::parse(std::ifstream(workshop() / "scratch.unet.json"));
  EXPECT_TRUE(shape["norm_eps"].is_number());
  EXPECT_EQ(shape["norm_eps"], 1e-5);

  const auto config = resolved("scratch");
  EXPECT_EQ(config["run"]["dir"], at("logs/diffusion/mine"));
  EXPECT_EQ(config["model"]["pipeline"], at("tiny"));
  EXPECT_EQ(config["model"]["unet"]["init"], "random");
  EXPECT_EQ(config["model"]["dtype"], "float32");
  EXPECT_EQ(config["model"]["gradient_checkpointing"], true);
  EXPECT_EQ(config["data"]["threads"], 1);
  EXPECT_EQ(config["batch"]["micro"], 2);
  EXPECT_EQ(config["batch"]["global"], 8);
  EXPECT_EQ(config["duration"], "24 samples");
  EXPECT_EQ(config["transform"]["policy"], "crop_then_resize");
  EXPECT_EQ(config["transform"]["interpolation"], "bicubic");
  EXPECT_EQ(config["optim"]["lr"], 2e-4);
  EXPECT_EQ(config["optim"]["betas"], Json({0.9, 0.98}));
  EXPECT_EQ(config["optim"]["weight_decay"], 0.02);
  EXPECT_EQ(config["optim"]["schedule"], "cosine");
  EXPECT_EQ(config["optim"]["warmup"], "1 steps");
  EXPECT_EQ(config["ema"]["enabled"], false);
  EXPECT_EQ(config["checkpoint"]["every"], "1 steps");  // of two passes each
  EXPECT_EQ(config["checkpoint"]["keep"], 1);
  expect_success(mpirun(2) + millrace + " train --config " + at("scratch.yaml") + " run.device=cpu");
  EXPECT_EQ(lines(workshop() / "logs/diffusion/mine/metrics.jsonl").back()["samples"], 24);
}

TEST(Convert, FineTuningAndFilters) {
  const auto outcome = convert(theirs("model:\n    pretrained: " + at("tiny") + "\n    max_grad_norm: 1.0\n",
                                      shapes_dataset + "        filters:\n            width: \">=1\"\n"),
                               "tuned");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto config = resolved("tuned");
  EXPECT_EQ(config["model"]["unet"]["init"], "pretrained");
  EXPECT_EQ(config["data"]["train"]["filters"]["width"], ">=1");
  EXPECT_EQ(config["optim"]["clip"], 1.0);
  EXPECT_EQ(config["batch"]["global"], 4);
  expect_success(millrace + " train --dry-run --config " + at("tuned.yaml") + " run.device=cpu run.dir=" + at("tuned"));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

// Zero workers load in the process itself, a norm of 0 or false is none; a flag may be text.
TEST(Convert, ZeroAndTextThatMeanOff) {
  for (const std::string off : {"0", "0.0", "'0'", "false", "null"}) {
    SCOPED_TRACE(off);
    auto text = theirs("model:\n    pretrained: " + at("tiny") + "\n    max_grad_norm: " + off + "\n", shapes_dataset);
    text = replaced(text, "workers: 1\n", "workers: 0\n");
    text = replaced(text, "save_only_most_recent: True", "save_only_most_recent: \"false\"");
    const auto outcome = convert(text, "off");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto config = resolved("off");
    EXPECT_EQ(config["data"]["threads"], "auto");
    EXPECT_EQ(config["optim"]["clip"], nullptr);
    EXPECT_EQ(config["checkpoint"]["keep_every"], "1 steps");
  }
  expect_success(millrace + " train --dry-run --config " + at("off.yaml") + " run.device=cpu run.dir=" + at("off"));
  expect_refusal(convert("model: {max_grad_norm: [1]}\n", "norm"), "model.max_grad_norm");
  expect_refusal(convert("experiment: {save_only_most_recent: maybe}\n", "recent"), "experiment.save_only_most_recent");
}

// Theirs counts passes where ours counts steps, so its cosine ends after a quarter: at (1 + cos(pi / 4)) / 2 = 85 %.
TEST(Convert, AccumulationMakesStepsOfPasses) {
  const auto text = theirs("model:\n    pretrained: " + at("tiny") + "\n", shapes_dataset);
  const auto with = [&](const std::string& accumulation, const std::string& save_every) {
    return replaced(replaced(text, "accumulation: 2", "accumulation: " + accumulation), "every: 2",
                    "every: " + save_every);
  };
  const auto outcome = convert(with("4", "1001"), "passes");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "lr_scheduler.scheduler: with gradient_accumulation 4 theirs ends at 85% of the rate");
  expect_mentions(outcome, "experiment.save_every: 1001 counts passes");
  const auto config = resolved("passes");
  EXPECT_EQ(config["checkpoint"]["every"], "251 steps");
  EXPECT_EQ(config["batch"]["global"], 8);
  EXPECT_EQ(config["optim"]["warmup"], "1 steps");  // which theirs counts in steps, too
  const auto alone = convert(with("1", "1001"), "passes");
  EXPECT_EQ(alone.output.find("gradient_accumulation"), std::string::npos) << alone.output;
  EXPECT_EQ(resolved("passes")["checkpoint"]["every"], "1001 steps");
  const auto open = convert(with("???", "1001"), "open");
  EXPECT_EQ(open.exit_code, 0) << open.output;
}

TEST(Convert, ClassesAndWhatMustBeSet) {
  std::ofstream(workshop() / "names.json") << R"({"0": "a circle"})";
  const auto outcome = convert(theirs("model:\n    pretrained: ???\n",
                                      "dataset:\n    type: ClassificationWebDataset\n    params:\n"
                                      "        path: ???\n        class_mapping: " +
                                          at("names.json") + "\n"),
                               "classes");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto refused = shell(millrace + " train --dry-run --config " + at("classes.yaml"));
  EXPECT_EQ(refused.exit_code, 2);
  expect_mentions(refused, "model.pipeline");
  expect_mentions(refused, "data.train.path");
  expect_success(millrace + " train --dry-run run.device=cpu --config " + at("classes.yaml") +
                 " model.pipeline=" + at("tiny") + " data.train.path=" + at("shapes") + " run.dir=" + at("classes"));
}

// A pipeline of the tiny one's files that says it makes text embeddings of SD 1's width: shapes alone are looked at.
std::string wide_pipeline() {
  const auto folder = workshop() / "wide";
  fs::copy(workshop() / "tiny", folder, fs::copy_options::recursive | fs::copy_options::skip_existing);
  auto config = Json::parse(std::ifstream(folder / "text_encoder/config.json"));
  config["hidden_size"] = 768;
  std::ofstream(folder / "text_encoder/config.json") << config;
  return folder.string();
}

// Both configurations of its README, with what they leave open filled in.
TEST(Convert, TheirOwnExamples) {
  struct Case {
    const char* name;
    std::string pipeline;
  };
  const Case cases[] = {{"template", wide_pipeline()}, {"finetune", at("tiny")}};
  for (const auto& [name, pipeline] : cases) {
    SCOPED_TRACE(name);
    const auto outcome = convert(read(fs::path(MILLRACE_OPEN_DIFFUSION) / (std::string(name) + ".yaml")), name);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output.find("no counterpart"), std::string::npos) << outcome.output;
    expect_success(millrace + " train --dry-run --config " + at(std::string(name) + ".yaml") +
                   " run.device=cpu run.dir=" + at("theirs") + " model.pipeline=" + pipeline +
                   " data.train.path=" + at("shapes") + " 'duration=1M samples'");
    const auto left_open = shell(millrace + " train --dry-run --config " + at(std::string(name) + ".yaml"));
    EXPECT_EQ(left_open.exit_code, 2);
    for (const char* key : {"model.pipeline", "data.train.path", "duration"}) expect_mentions(left_open, key);
  }
  const auto config = Json::parse(shell(millrace + " train --print-config=json --config " + at("template.yaml") +
                                        " run.dir=R model.pipeline=P data.train.path=D 'duration=1M samples'")
                                      .output);
  EXPECT_EQ(config["batch"]["micro"], 32);
  EXPECT_EQ(config["data"]["threads"], 6);
  EXPECT_EQ(config["data"]["train"]["filters"], Json({{"pwatermark", "<=0.5"}}));
  EXPECT_EQ(config["model"]["dtype"], "bfloat16");
  EXPECT_EQ(config["optim"]["betas"], Json({0.9, 0.98}));
  EXPECT_EQ(config["optim"]["eps"], 1e-8);
  EXPECT_EQ(config["optim"]["warmup"], "500 steps");
  EXPECT_EQ(config["transform"]["resolution"], 512);
  const auto unet = Json::parse(std::ifstream(workshop() / "template.unet.json"));
  EXPECT_EQ(unet["block_out_channels"], Json({320, 640, 1280, 1280}));
  EXPECT_EQ(unet["norm_eps"], 1e-5);
}

// The words in backquotes of the table's first column.
std::set<std::string> keys_in_docs() {
  std::set<std::string> keys;
  std::ifstream in(std::string(MILLRACE_CONFIGS) + "/../docs/config.md");
  std::string line;
  while (std::getline(in, line) && !line.starts_with("| theirs")) {
  }
  while (std::getline(in, line) && line.starts_with("|")) {
    std::istringstream theirs(line.substr(0, line.find("| ", 2)));
    std::string between, key;
    while (std::getline(theirs, between, '`') && std::getline(theirs, key, '`')) keys.insert(key);
  }
  return keys;
}

TEST(Convert, KnowsTheKeysOfTheTableInDocs) {
  const std::string script = std::string(MILLRACE_CONFIGS) + "/../scripts/convert_config";
  std::set<std::string> known = {"config=FILE"};
  std::istringstream lines(shell(script + " --keys").output);
  for (std::string key; std::getline(lines, key);) known.insert(key);
  EXPECT_THAT(known, testing::ContainerEq(keys_in_docs()));
  EXPECT_GT(known.size(), 50u);
}

TEST(Convert, DataOfOtherKinds) {
  const auto outcome = convert(theirs("model:\n    pretrained: somebody/some-model\n", R"(dataset:
    type: ClassificationWebDataset
    params:
        path: ["pipe:cat a.tar", b.tar]
        idx_to_prompt: {0: "a tench", 1: "a goldfish"}
        filters: {is_good: True, is_bad: False, score: 4.5, license: "== 'CC0'"}
)"),
                               "kinds");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_mentions(outcome, "model.pretrained: somebody/some-model is no folder here");
  expect_mentions(outcome, "get('somebody/some-model', local_dir='DIR', allow_patterns=[");
  expect_mentions(outcome, "data.allow_pipes: true");
  const auto config = resolved("kinds");
  EXPECT_EQ(config["data"]["train"]["filters"],
            Json({{"is_good", "true"}, {"is_bad", "false"}, {"score", "4.5"}, {"license", "== 'CC0'"}}));
  EXPECT_EQ(config["data"]["train"]["idx_to_prompt"], at("kinds.prompts.json"));
  EXPECT_EQ(Json::parse(std::ifstream(at("kinds.prompts.json"))), Json({{"0", "a tench"}, {"1", "a goldfish"}}));
  EXPECT_EQ(config["data"]["allow_pipes"], false);  // the user's own word
}

// The folder stays to be set.
TEST(Convert, NoPretrainedPartsAreSaidByFalse) {
  for (const std::string none : {"false", "null", "'none'"}) {
    SCOPED_TRACE(none);
    const auto outcome = convert("model: {pretrained: " + none + ", unet: {pretrained: " + none + "}}\n", "none");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const auto text = read(workshop() / "none.yaml");
    EXPECT_THAT(text, testing::HasSubstr("pipeline: ???"));
    EXPECT_THAT(text, testing::HasSubstr("init: random"));
  }
  for (const std::string odd : {"true", "3", "[a]"})
    expect_refusal(convert("model: {pretrained: " + odd + "}\n", "odd"), "model.pretrained");
}

// Files of other programs have sections of the same names.
TEST(Convert, RefusesConfigurationsOfOtherPrograms) {
  const std::string composer = "table \"Composer and MosaicML's diffusion\" of docs/coming-from-python.md";
  const std::string compvis = "CompVis' or Stability's training code";
  for (const auto& [text, says] :
       {std::pair{"model: {_target_: diffusion.models.models.stable_diffusion_2, pretrained: false}\n"s, composer},
        std::pair{"model: &m {pretrained: a, self: *m}\ndataset: {train: [{_target_: a.b}]}\n"s, composer},
        std::pair{"model: {name: a}\nalgorithms: {}\ntrainer: {max_duration: 550000ba}\n"s, composer},
        std::pair{"model: {base_learning_rate: 1.0e-04, target: ldm.models.diffusion.ddpm.LatentDiffusion}\n"s,
                  compvis},
        std::pair{"model: {target: a.b, params: {linear_start: 0.00085}}\n"s, compvis},
        std::pair{"model: {target: a.b}\nlightning: {trainer: {benchmark: True}}\n"s, compvis},
        std::pair{"model: {hidden: 3}\nsystem: {seed: 4}\n"s, "not one of its keys is known"s}}) {
    SCOPED_TRACE(text);
    fs::remove(workshop() / "other.yaml");
    const auto outcome = convert(text, "other");
    expect_refusal(outcome, says);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_FALSE(fs::exists(workshop() / "other.yaml"));
  }
}

TEST(Convert, NamesWhatIsWrong) {
  expect_refusal(convert("just text", "wrong"), "no sections");
  expect_refusal(convert(theirs("model:\n    pretrained: ${model.pretrained}\n", shapes_dataset), "loop"),
                 "leads back to itself");
  expect_refusal(convert("experiment:\n    name: ${nothing.here}\n", "unknown"), "nothing.here");
  for (const char* params : {"[1, 2]", "3"})
    expect_refusal(
        convert(theirs(std::string("model:\n    unet: {params: ") + params + "}\n", shapes_dataset), "shape"),
        "model.unet.params");
  expect_refusal(convert("system: {batch_size: [1]}\n", "batch"), "system.batch_size");
  expect_refusal(convert("dataset: {params: {filters: [a]}}\n", "filters"), "dataset.params.filters");
  expect_refusal(convert("dataset: {params: {filters: {a: {b: 1}}}}\n", "filters"), "dataset.params.filters.a");
  expect_refusal(convert("dataset: {type: [Parquet]}\n", "type"), "dataset.type");
  expect_refusal(convert("experiment: {save_every: 2}\n", "no-such-folder/out"), "no-such-folder");
}

}  // namespace
}  // namespace millrace::e2e
