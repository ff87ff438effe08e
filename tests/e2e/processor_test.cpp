// The same training as two processors do it: what is trained on, in which order, with which noise, must not show which.
#include <gtest/gtest.h>

#include "e2e/program.h"
#include "e2e/weights.h"

namespace millrace::e2e {
namespace {

// The C library, LibTorch, oneDNN, MKL and libjpeg choose their code by what the processor has; these words make them
// take that for a processor without AVX.
const std::string old_processor =
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 "
    "JSIMD_FORCESSE2=1 "
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2 ";

std::string bytes_of(const SafetensorsFile& file, const std::string& tensor) {
  const auto bytes = file.bytes(tensor);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Processor, DecidesNeitherOrderNorNoiseNorSchedules) {
  const std::string settings =
      "'duration=6 steps' transform.flip=0.5 objective.prediction=v_prediction objective.zero_terminal_snr=true "
      "objective.snr_gamma=5 objective.noise_offset=0.1 objective.input_perturbation=0.1 optim.schedule=cosine "
      "'record.steps=[1,6]' ";
  for (const auto& [name, environment] : {std::pair<std::string, std::string>{"this", ""}, {"old", old_processor}}) {
    const auto outcome = shell(environment + train(name, settings));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  const auto here = workshop() / "this", there = workshop() / "old";
  EXPECT_EQ(read(here / "ids.jsonl"), read(there / "ids.jsonl"));
  const auto metrics_here = lines(here / "metrics.jsonl"), metrics_there = lines(there / "metrics.jsonl");
  ASSERT_EQ(metrics_here.size(), 6u);
  for (std::size_t i = 0; i < metrics_here.size(); ++i) EXPECT_EQ(metrics_here[i]["lr"], metrics_there[i]["lr"]) << i;

  for (const std::string file : {"records/step-00000001.safetensors", "records/step-00000006.safetensors"}) {
    const SafetensorsFile record_here(here / file), record_there(there / file);
    for (const char* name : {"noise", "timesteps", "weight"})
      EXPECT_EQ(bytes_of(record_here, name), bytes_of(record_there, name)) << file << " " << name;
#if defined(__x86_64__)  // The networks differ in their last digits, or the words above mean nothing any more.
    if (__builtin_cpu_supports("avx2")) {
      EXPECT_NE(bytes_of(record_here, "prediction"), bytes_of(record_there, "prediction")) << file;
    }
#endif
    // Other crops, flips, captions or posterior samples would be far off.
    const Weights all_here = read_weights(here / file), all_there = read_weights(there / file);
    for (const char* name : {"latents", "text", "noisy", "target"})
      EXPECT_LT(relative_difference({{name, all_here.at(name)}}, {{name, all_there.at(name)}}), 1e-2) << file << name;
  }
}

}  // namespace
}  // namespace millrace::e2e
