// inspect on data, through the real binary.
#include <gmock/gmock.h>

#include "e2e/program.h"

namespace millrace::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string path_of(const std::string& name) {
  return (workshop() / name).string();
}

json inspect(const std::string& arguments) {
  const auto outcome = shell(millrace + " inspect --json " + arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return json::parse(outcome.output);
}

// Width and height in a PNG's header.
std::pair<int, int> png_size(const std::string& path) {
  const std::string bytes = read(path);
  const auto number = [&](std::size_t at) {
    int value = 0;
    for (std::size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes.at(i));
    return value;
  };
  EXPECT_EQ(bytes.substr(0, 4), "\x89PNG");
  return {number(16), number(20)};
}

TEST(InspectArchive, TellsSizesAndCaptionsAndShowsTheFirstImages) {
  const auto report =
      inspect(path_of("shapes/00000.tar") + " --pipeline " + path_of("tiny") + " --grid " + path_of("archive.png"));
  EXPECT_EQ(report["rows"], 24);
  EXPECT_EQ(report["images"]["decoded"], 24);
  EXPECT_EQ(report["images"]["smallest"], json({64, 64}));
  EXPECT_EQ(report["images"]["short_side"], json::parse(R"([{"from": 64, "to": 127, "images": 24}])"));
  EXPECT_EQ(report["captions"]["count"], 24);
  EXPECT_GT(report["captions"]["characters"]["median"], report["captions"]["tokens"]["median"]);
  EXPECT_EQ(report["captions"]["tokens"]["cut"], 0);
  EXPECT_TRUE(report["rejected"].empty());
  EXPECT_EQ(png_size(path_of("archive.png")), std::pair(5 * 130 - 2, 5 * 130 - 2));
}

TEST(InspectArchive, TellsWhatTrainingWouldReject) {
  const auto made = shell("mkdir -p " + path_of("spoilt") + " && cd " + path_of("spoilt") +
                          " && printf junk > 1.jpg && printf hi > 1.txt && printf 'long words' > 2.txt && "
                          "tar cf ../spoilt.tar 1.jpg 1.txt 2.txt");
  EXPECT_EQ(made.exit_code, 0) << made.output;
  const auto report = inspect(path_of("spoilt.tar"));
  EXPECT_EQ(report["rejected"], json::parse(R"({"missing_image": 1, "not_an_image": 1})"));
  EXPECT_THAT(report["first_rejected"][0].get<std::string>(), HasSubstr("1: not_an_image"));
  EXPECT_EQ(report["captions"]["characters"]["max"], 10);
  const auto grid = shell(millrace + " inspect " + path_of("spoilt.tar") + " --grid " + path_of("none.png"));
  EXPECT_EQ(grid.exit_code, 2);
  EXPECT_THAT(grid.output, HasSubstr("no image"));
}

TEST(InspectArchive, AWrongPipelineIsNoFaultOfTheArchive) {
  const auto outcome =
      shell(millrace + " inspect --json " + path_of("shapes/00000.tar") + " --pipeline " + path_of("x"));
  EXPECT_EQ(outcome.exit_code, 74);
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("kind")));
}

TEST(InspectCache, ShowsWhatItsLatentsDecodeTo) {
  const auto made = shell(millrace + " preprocess run.dir=" + path_of("filled") + " run.device=cpu model.pipeline=" +
                          path_of("tiny") + " data.train.path=" + path_of("shapes") +
                          " transform.resolution=32 encode.batch_size=8 encode.cache=" + path_of("cache"));
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const auto report = inspect(path_of("cache") + " --pipeline " + path_of("tiny") + " --grid " + path_of("cache.png"));
  EXPECT_EQ(report["captions"]["count"], 96);
  EXPECT_EQ(png_size(path_of("cache.png")), std::pair(8 * 34 - 2, 8 * 34 - 2));
  const auto blind = shell(millrace + " inspect " + path_of("cache") + " --grid " + path_of("none.png"));
  EXPECT_EQ(blind.exit_code, 2);
  EXPECT_THAT(blind.output, HasSubstr("--pipeline"));
}

}  // namespace
}  // namespace millrace::e2e
