// Checkpoints that earlier versions wrote go on being read. What they hold was put together from their files by a
// program of its own, scripts/goldens/checkpoint_expected.py.
#include <gtest/gtest.h>

#include <cstring>

#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/tensors.h"
#include "millrace/io/safetensors.h"
#include "test_data.h"

namespace millrace {
namespace {

class GoldenCheckpoint : public testing::TestWithParam<int> {};

TEST_P(GoldenCheckpoint, IsReadAsItWasWritten) {
  const auto folder = test::data_dir() / "checkpoints" / fmt::format("format-{}", GetParam());
  const auto checkpoint = CheckpointReader::open(folder);
  const SafetensorsFile expected(folder / "expected.safetensors");
  CheckpointTensors tensors(checkpoint);
  EXPECT_EQ(checkpoint.tensors().size(), expected.tensors().size());
  for (const auto& info : expected.tensors()) {
    const auto slash = info.name.find('/');
    const auto tensor = tensors.tensor(info.name.substr(0, slash), info.name.substr(slash + 1));
    EXPECT_EQ(tensor.sizes().vec(), info.shape) << info.name;
    const auto bytes = expected.bytes(info);
    ASSERT_EQ(tensor.nbytes(), bytes.size()) << info.name;
    EXPECT_EQ(std::memcmp(tensor.data_ptr(), bytes.data(), bytes.size()), 0) << info.name;
  }
  const auto state = checkpoint.state();
  EXPECT_EQ(state.step, 7);
  EXPECT_EQ(state.samples, 56);
  EXPECT_EQ(state.skipped, 2);
  EXPECT_EQ(state.updates, 7);
  EXPECT_EQ(state.ema_updates, 7);
  EXPECT_EQ(state.seconds, 12.5);
  EXPECT_EQ(state.cursors, (StripeCursors{{3, {1, 2, 3, 4}}, {4, {0, 5, 600, 7}}}));
  EXPECT_EQ(nlohmann::json::parse(checkpoint.ledger()),
            nlohmann::json::parse(R"({"archives": [["a", 3]], "seen": {"a": [[0, 3]]}})"));
  EXPECT_EQ(checkpoint.manifest().at("config"), "run:\n  seed: 420\n");
}

INSTANTIATE_TEST_SUITE_P(Formats, GoldenCheckpoint, testing::Values(1, 2));

}  // namespace
}  // namespace millrace
