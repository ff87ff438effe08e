// What users get wrong: the exit code, a message that names the culprit, and no hang. More of it in errors_test.cpp.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "e2e/program.h"

namespace millrace::e2e {
namespace {

struct Mistake {
  const char* name;
  std::string command;
  int exit_code;
  std::string named;  // must stand in the output
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
  *out << mistake.name;
}

// @ stands for its folder.
std::string in_workshop(std::string command) {
  for (std::size_t at; (at = command.find("@")) != command.npos;) command.replace(at, 1, workshop().string());
  return command;
}

class Usage : public testing::TestWithParam<Mistake> {};

TEST_P(Usage, FailsWithCodeAndName) {
  const auto& mistake = GetParam();
  const auto command = in_workshop(mistake.command);
  const auto outcome = shell("timeout 600 " + command);
  EXPECT_EQ(outcome.exit_code, mistake.exit_code) << command << "\n" << outcome.output;
  EXPECT_NE(outcome.output.find(mistake.named), std::string::npos) << command << "\n" << outcome.output;
}

const std::string m = MILLRACE_BINARY;
const std::string base = m +
                         " train run.dir=@/x run.device=cpu model.pipeline=@/tiny data.train.path=@/shapes "
                         "transform.resolution=32 batch.global=8 batch.micro=2 'duration=1 steps' ";

// The begin of `sh -c "..."`: `to` becomes the pipeline's `file` with another value of `key`, which is no list.
std::string edited(const std::string& file, const std::string& key, const std::string& value, const std::string& to) {
  return "sh -c \"sed 's/^\\( *." + key + ".:\\) [^,]*/\\1 " + value + "/' @/tiny/" + file + " > " + to + "; ";
}

// The same in a copy of the pipeline.
std::string in_copy(const std::string& file, const std::string& key, const std::string& value) {
  return "sh -c \"rm -rf @/copy; cp -r @/tiny @/copy; " + edited(file, key, value, "@/copy/" + file).substr(7);
}

std::string vae_of(const std::string& folder, const std::string& settings = "") {
  return m + " train-autoencoder run.dir=@/x run.device=cpu model.pipeline=" + folder +
         " data.train.path=@/shapes transform.resolution=32 batch.global=8 batch.micro=2 " + settings;
}

// Behind in_copy.
const std::string vae_in_copy = vae_of("@/copy") + "\"";

INSTANTIATE_TEST_SUITE_P(
    All, Usage,
    testing::Values(
        Mistake{"no_command", m, 2, "usage"}, Mistake{"unknown_command", m + " trian", 2, "did you mean 'train'?"},
        Mistake{"plan_without_cluster", m + " plan", 2, "--nodes"},
        Mistake{"plan_unknown_gpu", m + " plan --nodes 4x8xa1000", 2, "a100-80g"},
        Mistake{"plan_no_cluster", m + " plan --nodes eight", 2, "COUNTxGPUSxMODEL"},
        Mistake{"plan_no_nodes", m + " plan --nodes 0x8xh100", 2, "\"0\""},
        Mistake{"plan_too_many", m + " plan --nodes 1000000x1000000xh100", 2, "1000000000000 GPUs are more"},
        Mistake{"plan_too_many_in_all", m + " plan --nodes '1000000x1xh100 + 1x8xa10g'", 2, "1000008 GPUs are more"},
        Mistake{"plan_too_small", m + " plan --nodes 4x8xa10g batch.micro=64 transform.resolution=512", 2,
                "batch.micro"},
        Mistake{"plan_unknown_price", m + " plan --nodes 4x8xh100 plan.prices.h10=3", 2, "plan.prices.h10"},
        Mistake{"init_beyond_ulimit", "sh -c \"ulimit -f 200; " + m + " init --preset tiny --out @/limited\"", 74,
                "see `ulimit -f`"},
        Mistake{"plan_endless_price", m + " plan --nodes 4x8xh100 plan.prices.H100=inf", 2, "\"inf\" is no price"},
        Mistake{"plan_no_price", m + " plan --nodes 4x8xh100 plan.prices.h100=cheap", 2, "cheap"},
        Mistake{"address_as_folder",
                m + " train run.dir=s3://bucket/run model.pipeline=@/tiny data.train.path=@/shapes", 2,
                "run.dir: s3://bucket/run is an address"},
        Mistake{"address_to_download_to", m + " download download.urls=@/urls.csv download.out=s3://bucket/set", 2,
                "download.out: s3://bucket/set is an address"},
        Mistake{"address_to_write_to", m + " init --preset tiny --out s3://bucket/tiny", 2,
                "--out s3://bucket/tiny: an address"},
        Mistake{"evaluate_empty_run", m + " evaluate --follow --run ''", 2, "--run is empty: it takes a folder"},
        Mistake{"evaluate_empty_out", m + " evaluate --run @/x --out ''", 2, "--out is empty: it takes a folder"},
        Mistake{"plan_no_rates", m + " plan --nodes 4x8xh100 plan.rates=@/none.json", 74, "none.json"},
        Mistake{"unknown_option", m + " init --prest tiny --out @/i", 2, "--prest"},
        Mistake{"unknown_preset", m + " init --preset huge --out @/i", 2, "huge"},
        Mistake{"missing_option", m + " init --preset tiny", 2, "--out"},
        Mistake{"misspelt_section", base + "optm.lr=1", 2, "optm"},
        Mistake{"renamed_key", base + "data.shuffle_buffer=2000", 2, "replaced by data.shuffle_block"},
        Mistake{"bad_number", base + "optim.lr=fast", 2, "optim.lr"},
        Mistake{"negative_number", base + "optim.lr=-1", 2, "optim.lr"},
        Mistake{"one_beta", base + "optim.betas=[0.9]", 2, "optim.betas: expected list of 2 x number"},
        Mistake{"one_beta_of_bench", m + " bench step optim.betas=[0.9] model.pipeline=@/tiny", 2,
                "optim.betas: expected list of 2 x number"},
        Mistake{"bad_duration", base + "'duration=3 fortnights'", 2, "fortnights"},
        Mistake{"bad_word", base + "transform.policy=squash", 2, "transform.policy"},
        Mistake{"stray_word", base + "hello", 2, "hello"},
        Mistake{
            "duplicate_key",
            "sh -c \"printf 'run: {seed: 1}\\nrun: {seed: 2}\\n' > @/dup.yaml; " + m + " train --config @/dup.yaml\"",
            2, "dup.yaml"},
        Mistake{"broken_yaml",
                "sh -c \"printf 'run: {seed: 1\\n' > @/broken.yaml; " + m + " train --config @/broken.yaml\"", 2,
                "broken.yaml"},
        Mistake{"archive_missing", base + "data.train.path=@/no-{000..003}.tar", 74, "no-000.tar"},
        Mistake{"empty_folder", "sh -c \"mkdir -p @/empty; " + base + "data.train.path=@/empty\"", 74, "empty"},
        Mistake{"retries_in_steps", base + "'data.retry_for=100 steps'", 2, "data.retry_for"},
        Mistake{"pipes_not_allowed", base + "'data.train.path=pipe:cat @/shapes/00000.tar'", 2, "allow_pipes"},
        Mistake{"resolution_not_multiple", base + "transform.resolution=33", 2, "transform.resolution"},
        Mistake{"zero_terminal_epsilon", base + "objective.zero_terminal_snr=true", 2, "objective.zero_terminal_snr"},
        Mistake{"text_on_nobody", base + "encode.text_on=nobody", 2, "encode.text_on"},
        Mistake{"parquet_without_files", base + "data.train.type=parquet", 74, "parquet"},
        Mistake{"validation_missing", base + "data.validation.path=@/no.tar", 74, "data.validation"},
        Mistake{"validation_without_path", base + "data.validation.limit=3", 2, "data.validation.path"},
        Mistake{"bench_unknown", m + " bench juggling", 2, "juggling"},
        Mistake{"bench_alone", m + " bench collectives", 2, "mpirun"},
        Mistake{"bench_profile_of_another", m + " bench optimizer model.pipeline=@/tiny bench.profile=true", 2,
                "bench.profile"},
        Mistake{"producers_too_many", base + "roles.producers=4", 2, "roles.producers"},
        Mistake{"producers_twice", base + "roles.producers=1 roles.trainer_gpu=a100", 2,
                "roles.producers: has no use beside"},
        Mistake{"bad_filter", base + "'data.train.filters.width=>>3'", 2, "data.train.filters.width"},
        Mistake{"export_without_run", m + " export --run @/nothing --out @/o", 74, "nothing"},
        Mistake{"export_not_empty", m + " export --run @/shapes --out @/o", 74, "no checkpoint"},
        Mistake{"generate_without_prompt", m + " generate --pipeline @/tiny --out @/g", 2, "--prompt"},
        Mistake{"generate_bad_sampler", m + " generate --pipeline @/tiny --prompt x --out @/g generate.sampler=magic",
                2, "generate.sampler"},
        Mistake{"tokenize_not_json", "sh -c \"echo hello | " + m + " tokenize --pipeline @/tiny\"", 74, "line 1"},
        Mistake{"probe_unknown_component", m + " probe --component heart --pipeline @/tiny --input a --output b", 2,
                "heart"},
        Mistake{"probe_missing_input",
                m + " probe --component unet --pipeline @/tiny --input @/none.safetensors --output @/b", 74,
                "none.safetensors"},
        Mistake{"init_bad_threads", m + " init --preset tiny --out @/i threads=0", 2, "threads"},
        Mistake{"inspect_bad_threads", m + " inspect @/shapes/00000.tar threads=abc", 2, "threads"},
        Mistake{"report_missing_config", m + " report @/shapes --config @/none.yaml", 74, "none.yaml"},
        Mistake{"hostile_safetensors",
                "sh -c \"printf '\\377\\377\\377\\377\\377\\377\\377\\177{}' > @/evil.safetensors; " + m +
                    " inspect @/evil.safetensors\"",
                74, "evil.safetensors"},
        Mistake{"pickle_weights",
                "sh -c \"rm -rf @/pickle; cp -r @/tiny @/pickle; mv @/pickle/unet/diffusion_pytorch_model.safetensors "
                "@/pickle/unet/diffusion_pytorch_model.bin; " +
                    m + " generate --pipeline @/pickle --prompt x --out @/g\"",
                74, "diffusion_pytorch_model"},
        Mistake{
            "broken_tar",
            "sh -c \"mkdir -p @/cut; head -c 3000 @/shapes/00000.tar > @/cut/a.tar; " + m + " inspect @/cut/a.tar\"",
            74, "a.tar"},
        Mistake{
            "unet_of_one_channel",
            edited("unet/config.json", "out_channels", "1", "@/out1.json") + base + "model.unet.config=@/out1.json\"",
            2, "override: model.unet.config: the U-Net predicts 1 channels, the VAE makes 4"},
        Mistake{"unet_of_more_channels",
                edited("unet/config.json", "in_channels", "9", "@/in9.json") + base + "model.unet.config=@/in9.json\"",
                2, "override: model.unet.config: the U-Net takes 9 channels, the VAE makes 4"},
        Mistake{"unet_of_another_folder_to_time",
                in_copy("unet/config.json", "out_channels", "1") + m +
                    " bench step run.device=cpu model.pipeline=@/copy transform.resolution=32 batch.micro=1\"",
                2, "model.pipeline: the U-Net takes 4 channels and predicts 1"},
        Mistake{"unet_config_is_named",
                edited("unet/config.json", "num_class_embeds", "10", "@/cls.json") + base +
                    "model.unet.config=@/cls.json\"",
                74, "/cls.json: num_class_embeds = 10: class conditioning is not built here"},
        Mistake{"captions_without_positions",
                in_copy("text_encoder/config.json", "max_position_embeddings", "32") + base + "model.pipeline=@/copy\"",
                2, "model.pipeline: the text encoder has max_position_embeddings = 32, and captions are 77 tokens"},
        Mistake{"autoencoder_of_gray", in_copy("vae/config.json", "out_channels", "1") + vae_in_copy, 74,
                "vae/config.json: out_channels = 1: is not 3: pictures are RGB"},
        Mistake{"autoencoder_of_layers", in_copy("vae/config.json", "in_channels", "4") + vae_in_copy, 74,
                "vae/config.json: in_channels = 4: is not 3: pictures are RGB"},
        Mistake{"text_encoder_of_another_kind",
                in_copy("text_encoder/config.json", "model_type", "\\\"t5\\\"") + base + "model.pipeline=@/copy\"", 74,
                "text_encoder/config.json: model_type = \"t5\": this text encoder is not built here"},
        Mistake{"scaling_factor_in_words", vae_of("@/tiny", "autoencoder.scaling_factor=none"), 2,
                "autoencoder.scaling_factor: expected auto, measure, keep or a number above 0, found none"},
        Mistake{"scaling_factor_of_nothing", vae_of("@/tiny", "autoencoder.scaling_factor=0"), 2,
                "autoencoder.scaling_factor: expected auto"},
        Mistake{"validation_of_an_autoencoder", vae_of("@/tiny", "data.validation.path=@/shapes"), 2,
                "override: data.validation: is for train alone"},
        Mistake{"autoencoder_of_another_class",
                in_copy("vae/config.json", "_class_name", "\\\"AutoencoderTiny\\\"") + base + "model.pipeline=@/copy\"",
                74, "vae/config.json: _class_name = \"AutoencoderTiny\": this network is not built here"},
        Mistake{"new_key_of_hydra", base + "+optim.lrr=1", 2, "override: optim.lrr: unknown key"},
        Mistake{"deleted_key", base + "'~optim.clip'", 2, "'~optim.clip': keys cannot be deleted"},
        Mistake{"deleted_key_with_value", base + "'~optim.clip=1'", 2, "'~optim.clip=1': keys cannot be deleted"},
        Mistake{"broken_parquet", "sh -c \"printf PAR1junkPAR1 > @/cut.parquet; " + m + " inspect @/cut.parquet\"", 74,
                "cut.parquet"},
        Mistake{"damaged_list", "sh -c \"printf 'a,b\\n1,2\\n3\\n' > @/cut.csv; " + m + " inspect @/cut.csv\"", 74,
                "1 damaged rows"}),
    [](const auto& info) { return std::string(info.param.name); });

// A component is refused tensors of zeros with these headers, by the name of their file and in these words.
void expect_refused(const std::string& component, std::string header, std::size_t zeros,
                    const std::string& words = {}) {
  const auto file = workshop() / (component + ".safetensors");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t bytes = header.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&bytes), sizeof bytes) << header << std::string(zeros, '\0');
  out.close();
  const auto outcome = shell(in_workshop(m + " probe --component " + component + " --pipeline @/tiny --input " +
                                         file.string() + " --output @/b run.device=cpu"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  const auto refusal = words.empty() ? component + " does not take it: " : words;
  EXPECT_NE(outcome.output.find(component + ".safetensors: " + refusal), std::string::npos) << outcome.output;
}

TEST(Probe, AnInputOfAnotherShapeIsNamed) {
  expect_refused("vae-encode", R"({"image":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
}

TEST(Probe, TokensAreIntegers) {
  expect_refused("text", R"({"ids":{"dtype":"F32","shape":[1,77],"data_offsets":[0,308]}})", 308,
                 "\"ids\" is of float, and has to be of integers");
}

// Refused by a kernel of ours as by LibTorch's.
TEST(Probe, StatesOfAnotherBatchAreNamed) {
  expect_refused("unet",
                 R"({"sample":{"dtype":"F32","shape":[2,4,8,8],"data_offsets":[0,2048]},)"
                 R"("timestep":{"dtype":"F32","shape":[1],"data_offsets":[2048,2052]},)"
                 R"("encoder_hidden_states":{"dtype":"F32","shape":[1,77,64],"data_offsets":[2052,21764]}})",
                 21764);
}

// The findings of a report of the configuration, without what they say: "data.train.path" or "FILE:3: data.train.path".
std::set<std::string> findings(std::string command) {
  command = in_workshop(command);
  const auto outcome = shell("timeout 600 " + command);
  EXPECT_EQ(outcome.exit_code, 2) << command << "\n" << outcome.output;
  std::set<std::string> found;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    static const std::regex finding("  (?!hint)((override: |[^ ]+:[0-9]+: )?[a-z_.]+): .*");
    std::smatch match;
    if (std::regex_match(line, match, finding)) found.insert(match[1]);
  }
  return found;
}

using Findings = std::set<std::string>;

TEST(Report, WhatIsMissingIsToldAtOnce) {
  EXPECT_EQ(findings(m + " train"), (Findings{"run.dir", "model.pipeline", "data.train.path"}));
  EXPECT_EQ(findings(m + " train-autoencoder"), (Findings{"run.dir", "model.pipeline", "data.train.path"}));
  EXPECT_EQ(findings(m + " preprocess"), (Findings{"run.dir", "model.pipeline", "data.train.path", "encode.cache"}));
  EXPECT_EQ(findings(m + " download"), (Findings{"download.urls", "download.out"}));
  EXPECT_EQ(findings(m + " bench loader"), (Findings{"model.pipeline", "data.train.path"}));
  EXPECT_EQ(findings(m + " train data.train.type=latents"), (Findings{"run.dir", "model.pipeline", "data.train.path"}));
  EXPECT_EQ(findings(m + " train data.train.type=synthetic"), (Findings{"run.dir", "model.pipeline"}));
  EXPECT_EQ(findings(m + " train data.train.type=class"),
            (Findings{"run.dir", "model.pipeline", "data.train.path", "data.train.idx_to_prompt"}));
}

TEST(Report, HoldsEveryKindOfFindingWithItsPlace) {
  const auto file = (workshop() / "all.yaml").string();
  std::ofstream(file) << "run:\n  dir: ???\n  device: cpu\nbatch: {global: 10, micro: 16}\ndata:\n  stripes: 3\n"
                         "  train:\n    path: []\n    filters: {width: '>>3', height: '<9'}\n  validation: {limit: 3}\n"
                         "samples:\n  steps: 0\noptim:\n  lrr: 1\n  warmup: 3 min\n";
  EXPECT_EQ(findings(m + " train --config " + file + " encode.text_on=nobody guard.hang_timeout='5 steps'"),
            (Findings{file + ":2: run.dir", "model.pipeline", file + ":4: batch.global", file + ":6: data.stripes",
                      file + ":8: data.train.path", file + ":9: data.train.filters.width", "data.validation.path",
                      file + ":12: samples.steps", file + ":14: optim.lrr", file + ":15: optim.warmup",
                      "override: encode.text_on", "override: guard.hang_timeout"}));
}

TEST(Report, WhoeverWaitsForOtherRanksNeedsATimeForIt) {
  for (const std::string command : {"generate --pipeline @/tiny --prompt x --out @/none",
                                    "evaluate --run @/none 'evaluate.metrics=[]' --out @/none"})
    for (const std::string timeout : {"0s", "'3 steps'"})
      EXPECT_EQ(findings(m + " " + command + " guard.hang_timeout=" + timeout),
                Findings{"override: guard.hang_timeout"});
}

TEST(Report, DoesNotFollowARefusedValueFurther) {
  EXPECT_EQ(findings(base + "batch.micro=0 data.train.type=tars data.train.path=[] optim.schedule=cosine duration=x"),
            (Findings{"override: batch.micro", "override: data.train.type", "override: duration"}));
}

TEST(Output, ThatIsNotWholeIsAnError) {
  for (const std::string command :
       {" --help", " train --print-config run.dir=x model.pipeline=x data.train.path=x", " env"}) {
    for (const std::string nowhere : {" > /dev/full", " >&-"}) {
      const auto outcome = shell(m + command + nowhere);
      EXPECT_EQ(outcome.exit_code, 74) << command << nowhere;
      EXPECT_NE(outcome.output.find("it could not be written"), std::string::npos) << outcome.output;
    }
  }
}

TEST(Output, OfInitIsAllThatItWrites) {
  const auto outcome = shell(in_workshop("TMPDIR=@/nowhere " + m + " init --preset tiny --no-weights --out @/no-tmp"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(Commands, WithoutSettingsHeedWhatAllCommandsHave) {
  for (const std::string command : {"report @/shapes", "tokenize", "env"}) {
    const auto outcome = shell(in_workshop(m + " " + command + " --print-config=json threads=2"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output, "{}\n");
  }
  const auto dry = shell(in_workshop("echo hello | " + m + " tokenize --pipeline @/tiny --dry-run"));
  EXPECT_EQ(dry.exit_code, 0) << dry.output;
}

TEST(Help, OfACommandIsTheCommandsOwn) {
  const auto asked = shell(m + " help train"), own = shell(m + " train --help");
  EXPECT_EQ(asked.exit_code, 0);
  EXPECT_EQ(asked.output, own.output);
  EXPECT_EQ(shell(m + " help trian").exit_code, 2);
}

TEST(Version, IsToldByEveryCommand) {
  for (const std::string command : {" --version", " train --version", " inspect --version", " env --version"}) {
    const auto outcome = shell(m + command);
    EXPECT_EQ(outcome.exit_code, 0) << command << outcome.output;
    EXPECT_TRUE(outcome.output.starts_with("millrace 0.")) << outcome.output;
  }
}

TEST(Ranks, WithOtherSettingsAreRefused) {
  const auto command = train("unlike", "--dry-run 'optim.lr=${oc.env:LR,1e-4}' 'threads=${oc.env:T,1}'");
  const auto differing = shell(mpirun(1) + "env LR=1e-2 " + command + " : -n 1 " + command);
  EXPECT_EQ(differing.exit_code, 2) << differing.output;
  EXPECT_NE(differing.output.find("has other settings than rank 0: optim.lr is 0.0001, there 0.01"), std::string::npos)
      << differing.output;
  const auto node_by_node = shell(mpirun(1) + "env T=2 " + command + " : -n 1 " + command);
  EXPECT_EQ(node_by_node.exit_code, 0) << node_by_node.output;
}

TEST(Ranks, OfAnotherMpiAreRefused) {
  const auto outcome = shell("PMI_RANK=0 PMI_SIZE=2 " + train("strange", "--dry-run"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("one of 2 processes, but it cannot find the others"), std::string::npos)
      << outcome.output;
}

TEST(ConfigDocs, AreWhatHelpSays) {
  const auto outcome = shell(std::string(MILLRACE_CONFIGS) + "/../scripts/config_docs --check " + m);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

}  // namespace
}  // namespace millrace::e2e
