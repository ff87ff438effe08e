#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "tensorboard.h"
#include "tensorboard_events.h"

namespace millrace {
namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// Bytes that TensorBoard's own summary writer gives for the same events.
TEST(TensorBoard, VersionEvent) {
  EXPECT_EQ(hex(tensorboard_record(tensorboard_version_event(1.0))),
            "1800000000000000a37f4b22"
            "09000000000000f03f1a0d627261696e2e4576656e743a32"
            "86bf577a");
}

TEST(TensorBoard, ScalarEvent) {
  EXPECT_EQ(hex(tensorboard_record(tensorboard_scalar_event(2.0, 7, "loss", 0.5f))),
            "1a00000000000000129bd82d"
            "09000000000000004010072a0d0a0b0a046c6f7373150000003f"
            "c33fc24a");
}

TEST(TensorBoard, LongNumbersAreVarints) {
  EXPECT_THAT(hex(tensorboard_scalar_event(0, 300, "x", 0)), testing::StartsWith("090000000000000000"
                                                                                 "10ac02"
                                                                                 "2a"));
}

// What TensorBoard 2.21's own protocol buffers serialize for the same messages.
TEST(TensorBoard, ImageAndTextEvents) {
  EXPECT_EQ(hex(tensorboard_image_event(2.0, 7, "samples", "PNG", 2, 300)),
            "09000000000000004010072a190a170a0773616d706c6573220c080210ac0218032203504e47");
  EXPECT_EQ(hex(tensorboard_text_event(2.0, 7, "config", "a: 1")),
            "09000000000000004010072a200a1e0a06636f6e666967420a080712004204613a20314a080a060a0474657874");
}

// The payloads of a file's records, by their lengths.
std::vector<std::string> events_of(const std::filesystem::path& path) {
  const auto bytes = read_file(path);
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    events.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(tensorboard_record(events.back()), bytes.substr(at, length + 16));
    at += length + 16;
  }
  return events;
}

std::vector<std::string> events_of_new_file(const std::filesystem::path& folder, std::int64_t resumed_step) {
  {
    TensorBoardWriter writer(folder, resumed_step);
    writer.scalar("train/loss", resumed_step + 1, 0.5);
  }
  const auto path = std::filesystem::directory_iterator(folder)->path();
  EXPECT_THAT(path.filename().string(), testing::HasSubstr("tfevents"));
  return events_of(path);
}

TEST(TensorBoard, AFileHasVersionStartAndScalars) {
  test::TempDir folder;
  const auto events = events_of_new_file(folder / "tensorboard", 0);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_THAT(events[0], testing::HasSubstr("brain.Event:2"));
  EXPECT_EQ(hex(events[1]).substr(18),
            "1001"
            "3a020801");  // step 1, SessionLog{status: START}: what an earlier start left is taken again
  EXPECT_THAT(events[2], testing::HasSubstr("train/loss"));
}

TEST(TensorBoard, AResumedFileTellsTheViewerWhere) {
  test::TempDir folder;
  const auto events = events_of_new_file(folder / "tensorboard", 7);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(hex(events[1]).substr(18),
            "1008"
            "3a020801");  // step 8, the first that is written again
}

// In the same second, and after a host whose clock was ahead.
TEST(TensorBoard, ANewFileComesLast) {
  test::TempDir folder;
  folder.write("events.out.tfevents.4102444800.another.1.0", "");
  for (int i = 0; i < 12; ++i) TensorBoardWriter(folder.path(), i);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  ASSERT_EQ(names.size(), 13u);
  for (int i = 0; i < 12; ++i) EXPECT_THAT(names[i + 1], testing::HasSubstr(std::to_string(4102444801 + i)));
}

}  // namespace
}  // namespace millrace
