// What users get wrong: the exit code, a message that names the culprit, and no hang.
#include <gtest/gtest.h>

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

class Usage : public testing::TestWithParam<Mistake> {};

TEST_P(Usage, FailsWithCodeAndName) {
  const auto& mistake = GetParam();
  auto command = mistake.command;
  for (std::size_t at; (at = command.find("@")) != command.npos;) command.replace(at, 1, workshop().string());
  const auto outcome = shell("timeout 60 " + command);
  EXPECT_EQ(outcome.exit_code, mistake.exit_code) << command << "\n" << outcome.output;
  EXPECT_NE(outcome.output.find(mistake.named), std::string::npos) << command << "\n" << outcome.output;
}

const std::string m = MILLRACE_BINARY;
const std::string base = m +
                         " train run.dir=@/x run.device=cpu model.pipeline=@/tiny data.train.path=@/shapes "
                         "transform.resolution=32 batch.global=8 batch.micro=2 'duration=1 steps' ";

INSTANTIATE_TEST_SUITE_P(
    All, Usage,
    testing::Values(
        Mistake{"no_command", m, 2, "usage"}, Mistake{"unknown_command", m + " trian", 2, "trian"},
        Mistake{"later_command", m + " evaluate", 2, "not available"},
        Mistake{"unknown_option", m + " init --prest tiny --out @/i", 2, "--prest"},
        Mistake{"unknown_preset", m + " init --preset huge --out @/i", 2, "huge"},
        Mistake{"missing_option", m + " init --preset tiny", 2, "--out"},
        Mistake{"misspelt_key", base + "optim.lrr=1", 2, "optim.lr"},
        Mistake{"misspelt_section", base + "optm.lr=1", 2, "optm"},
        Mistake{"missing_required", m + " train", 2, "run.dir"},
        Mistake{"missing_required_both", m + " train", 2, "model.pipeline"},
        Mistake{"bad_number", base + "optim.lr=fast", 2, "optim.lr"},
        Mistake{"negative_number", base + "optim.lr=-1", 2, "optim.lr"},
        Mistake{"bad_duration", base + "'duration=3 fortnights'", 2, "fortnights"},
        Mistake{"bad_word", base + "transform.policy=squash", 2, "transform.policy"},
        Mistake{"stray_word", base + "hello", 2, "hello"},
        Mistake{"config_file_missing", m + " train --config @/none.yaml", 74, "none.yaml"},
        Mistake{
            "duplicate_key",
            "sh -c \"printf 'run: {seed: 1}\\nrun: {seed: 2}\\n' > @/dup.yaml; " + m + " train --config @/dup.yaml\"",
            2, "dup.yaml"},
        Mistake{"broken_yaml",
                "sh -c \"printf 'run: {seed: 1\\n' > @/broken.yaml; " + m + " train --config @/broken.yaml\"", 2,
                "broken.yaml"},
        Mistake{"pipeline_missing", base + "model.pipeline=@/nowhere", 74, "nowhere"},
        Mistake{"archive_missing", base + "data.train.path=@/no-{000..003}.tar", 74, "no-000.tar"},
        Mistake{"empty_folder", "sh -c \"mkdir -p @/empty; " + base + "data.train.path=@/empty\"", 74, "empty"},
        Mistake{"pipes_not_allowed", base + "'data.train.path=pipe:cat @/shapes/00000.tar'", 2, "allow_pipes"},
        Mistake{"batch_not_multiple", base + "batch.micro=3", 2, "batch.micro"},
        Mistake{"stripes_not_divisor", base + "data.stripes=3", 2, "stripes"},
        Mistake{"resolution_not_multiple", base + "transform.resolution=33", 2, "transform.resolution"},
        Mistake{"no_gpu", base + "run.device=cuda", 2, "cuda"},
        Mistake{"zero_terminal_epsilon", base + "objective.zero_terminal_snr=true", 2, "objective.zero_terminal_snr"},
        Mistake{"strategy_later", base + "parallel.strategy=full_shard", 2, "full_shard"},
        Mistake{"parquet_without_files", base + "data.train.type=parquet", 74, "parquet"},
        Mistake{"validation_missing", base + "data.validation.path=@/no.tar", 74, "data.validation"},
        Mistake{"validation_without_path", base + "data.validation.limit=3", 2, "data.validation.path"},
        Mistake{"bench_unknown", m + " bench juggling", 2, "juggling"},
        Mistake{"bench_alone", m + " bench collectives", 2, "mpirun"},
        Mistake{"producers_too_many", base + "roles.producers=4", 2, "roles.producers"},
        Mistake{"resume_path_missing", base + "checkpoint.resume=@/gone", 74, "gone"},
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
        Mistake{"broken_parquet", "sh -c \"printf PAR1junkPAR1 > @/cut.parquet; " + m + " inspect @/cut.parquet\"", 74,
                "cut.parquet"},
        Mistake{"damaged_list", "sh -c \"printf 'a,b\\n1,2\\n3\\n' > @/cut.csv; " + m + " inspect @/cut.csv\"", 74,
                "1 damaged rows"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace::e2e
