// inspect on data, through the real binary.
#include <gmock/gmock.h>

#include "e2e/program.h"
#include "millrace/image/decode.h"
#include "millrace/image/encode_jpeg.h"
#include "millrace/io/tar_writer.h"

namespace millrace::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int caption_line = 14;  // height in a grid

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
  EXPECT_EQ(png_size(path_of("archive.png")), std::pair(5 * 130 - 2, 5 * (130 + 2 * caption_line) - 2));
}

using Colour = std::array<int, 3>;
constexpr Colour red{255, 0, 0}, green{0, 255, 0}, blue{0, 0, 255}, white{255, 255, 255}, grey{96, 96, 96}, black{};

// Four flat quarters, from the top left by rows.
std::string quarters(int width, int height, const std::array<Colour, 4>& colours) {
  Image image{width, height, Pixels(std::size_t{3} * width * height)};
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c)
        image.pixels[3 * (std::size_t(y) * width + x) + c] =
            static_cast<std::uint8_t>(colours[2 * (2 * y / height) + 2 * x / width][c]);
  return encode_jpeg(image, 100);
}

// Cells of 128 pixels and 2 between them, in the order of the rows; a whole image in the middle of each, neither turned
// nor stretched, its caption under it; images that cannot be decoded take no cell.
TEST(InspectArchive, ItsGridShowsWholeImagesInOrder) {
  const std::array<Colour, 4> colours{red, green, blue, white};
  TarWriter tar(path_of("quarters.tar"));
  const auto add = [&](const std::string& key, const std::string& jpg) {
    tar.write({.key = key, .fields = {{"jpg", jpg}, {"txt", key}}});
  };
  add("wide", quarters(320, 80, colours));
  add("tall", quarters(80, 320, colours));
  add("broken", quarters(64, 64, colours).substr(0, 300));
  add("small", quarters(16, 16, colours));
  add("square", quarters(512, 512, {white, blue, green, red}));
  add("line", quarters(1000, 2, {red, red, red, red}));
  tar.commit();
  const auto report = inspect(path_of("quarters.tar") + " --grid " + path_of("quarters.png"));
  EXPECT_EQ(report["images"]["decoded"], 5);
  const auto grid = std::get<Image>(decode_image(read(path_of("quarters.png"))));
  ASSERT_EQ(std::pair(grid.width, grid.height), std::pair(3 * 130 - 2, 2 * (130 + caption_line) - 2));
  // `x`, `y` from the middle of a cell
  const auto expect = [&](int cell, int x, int y, const Colour& colour) {
    const int column = cell % 3 * 130 + 64 + x, row = cell / 3 * (130 + caption_line) + 64 + y;
    for (int c = 0; c < 3; ++c)
      EXPECT_NEAR(grid.pixels[3 * (std::size_t(row) * grid.width + column) + c], colour[c], 6)
          << "cell " << cell << " at " << x << ", " << y;
  };
  // From the edges up to `near` pixels from the middle, where resizing blends the quarters.
  const auto expect_quarters = [&](int cell, int half_width, int half_height, const std::array<Colour, 4>& of,
                                   int near = 3) {
    for (const int x : {half_width - 1, half_width / 2, near}) {
      for (const int y : {half_height - 1, half_height / 2, near}) {
        expect(cell, -x - 1, -y - 1, of[0]);
        expect(cell, x, -y - 1, of[1]);
        expect(cell, -x - 1, y, of[2]);
        expect(cell, x, y, of[3]);
      }
    }
    if (half_width < 64) expect(cell, half_width, 0, grey), expect(cell, -half_width - 1, 0, grey);
    if (half_height < 64) expect(cell, 0, half_height, grey), expect(cell, 0, -half_height - 1, grey);
  };
  expect_quarters(0, 64, 16, colours);
  expect_quarters(1, 16, 64, colours);
  expect_quarters(2, 64, 64, colours, 20);
  expect_quarters(3, 64, 64, {white, blue, green, red});
  expect(4, 0, -1, red);
  expect(4, -64, -1, red);
  expect(4, 0, 0, grey);
  expect(5, 0, 0, black);  // no sixth image
  for (int cell = 0; cell < 6; ++cell) {
    int brightest = 0;
    for (int y = 0; y < caption_line; ++y)
      for (int x = 0; x < 128; ++x) {
        const int column = cell % 3 * 130 + x, row = cell / 3 * (130 + caption_line) + 128 + y;
        brightest = std::max<int>(brightest, grid.pixels[3 * (std::size_t(row) * grid.width + column)]);
      }
    EXPECT_EQ(brightest > 200, cell < 5) << cell;
  }
  expect(0, 64, 0, black);  // between two cells
}

TEST(InspectArchive, TellsWhatTrainingWouldReject) {
  const auto made = shell("mkdir -p " + path_of("spoilt") + " && cd " + path_of("spoilt") +
                          " && printf junk > 1.jpg && printf hi > 1.txt && printf 'long words' > 2.txt && "
                          "tar cf ../spoilt.tar 1.jpg 1.txt 2.txt");
  EXPECT_EQ(made.exit_code, 0) << made.output;
  const auto report = inspect(path_of("spoilt.tar"));
  EXPECT_EQ(report["rejected"], json::parse(R"({"missing_image": 1, "not_an_image": 1})"));
  EXPECT_THAT(report["first_rejected"][0].get<std::string>(), HasSubstr("spoilt/1: not_an_image"));
  EXPECT_EQ(report["first_rejected"][1], "spoilt/2: missing_image, none of jpg, png, jpeg, webp; it has txt");
  EXPECT_EQ(report["captions"]["characters"]["max"], 2) << "of those that training would have";
  const auto grid = shell(millrace + " inspect " + path_of("spoilt.tar") + " --grid " + path_of("none.png"));
  EXPECT_EQ(grid.exit_code, 2);
  EXPECT_THAT(grid.output, HasSubstr("no image"));
}

TEST(InspectArchive, ReadsWithTheColumnsOfARun) {
  const std::string jpg = quarters(16, 16, {red, green, blue, white});
  TarWriter tar(path_of("captions.tar"));
  tar.write({.key = "0", .fields = {{"jpg", jpg}, {"json", R"({"caption": "four colours"})"}}});
  tar.write({.key = "1", .fields = {{"jpg", jpg}, {"json", "{}"}}});
  tar.commit();
  const auto plain = inspect(path_of("captions.tar"));
  EXPECT_EQ(plain["rejected"], json::parse(R"({"missing_caption": 2})"));
  EXPECT_EQ(plain["first_rejected"][0], "captions/0: missing_caption, no txt; it has jpg, json");
  const auto told = inspect(path_of("captions.tar") + " data.train.columns.caption=json.caption");
  EXPECT_EQ(told["rejected"], json::parse(R"({"missing_caption": 1})"));
  EXPECT_EQ(told["images"]["decoded"], 1);
  EXPECT_EQ(told["captions"]["characters"]["max"], 12);
  const auto wrong = shell(millrace + " inspect " + path_of("captions.tar") + " data.train.column.caption=txt");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.output, HasSubstr("data.train.column"));
}

// Whose texts are elsewhere.
TEST(InspectArchive, OfClassesItsImagesAreTold) {
  const std::string jpg = quarters(16, 16, {red, green, blue, white});
  TarWriter tar(path_of("classes.tar"));
  tar.write({.key = "0", .fields = {{"jpg", jpg}, {"cls", "7"}}});
  tar.commit();
  const auto report = inspect(path_of("classes.tar"));
  EXPECT_EQ(report["rejected"], json::object());
  EXPECT_EQ(report["images"]["decoded"], 1);
  EXPECT_EQ(report["captions"]["count"], 0);
}

TEST(InspectArchive, AWrongPipelineIsNoFaultOfTheArchive) {
  const auto outcome =
      shell(millrace + " inspect --json " + path_of("shapes/00000.tar") + " --pipeline " + path_of("x"));
  EXPECT_EQ(outcome.exit_code, 74);
  EXPECT_THAT(outcome.output, testing::Not(HasSubstr("kind")));
}

// By cat: what follows the first one is not read.
TEST(InspectArchive, JoinedCompressedOnesAreTold) {
  const auto joined = path_of("joined.tar.gz");
  shell("gzip -c " + path_of("shapes/00000.tar") + " > " + joined);
  EXPECT_EQ(shell(millrace + " inspect " + joined).exit_code, 0);
  shell("head -c 4000000 /dev/urandom | gzip -c >> " + joined);
  EXPECT_THAT(shell(millrace + " inspect " + joined).output, HasSubstr("behind the end mark, which nothing reads"));
}

// With a command that a shell may be given, whatever the folder is called.
TEST(InspectArchive, AFolderOfThemIsNamedSo) {
  const auto folder = path_of("$(touch X)");
  fs::create_directories(folder);
  fs::copy_file(path_of("shapes/00000.tar"), folder + "/00000.tar");
  const auto outcome = shell(millrace + " inspect '" + folder + "'");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output, testing::AllOf(HasSubstr(folder + " is a folder of archives"),
                                             HasSubstr("millrace inspect '" + folder + "'/* ")));
}

TEST(InspectArchive, AFolderOfImagesIsNamedSo) {
  fs::create_directories(path_of("loose"));
  for (const char* name : {"0.jpg", "0.txt"}) std::ofstream(path_of("loose") + "/" + name) << "x";
  const auto outcome = shell(millrace + " inspect " + path_of("loose"));
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::AllOf(HasSubstr("loose is a folder of images"), HasSubstr("tar --sort=name -cf 00000.tar -C ")));
}

TEST(InspectArchive, AModelWithAPreviewIsNoFolderOfImages) {
  fs::create_directories(path_of("previewed"));
  for (const char* name : {"mine.safetensors", "mine.png"}) std::ofstream(path_of("previewed") + "/" + name) << "x";
  const auto outcome = shell(millrace + " inspect " + path_of("previewed"));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("holds no Stable Diffusion pipeline"));
}

// As a shell makes it of FOLDER/*, where `download` has put more than archives.
TEST(InspectArchive, FilesOfOtherKindsBesideThemArePassedOver) {
  fs::create_directories(path_of("downloaded"));
  fs::copy_file(path_of("shapes/00000.tar"), path_of("downloaded/00000.tar"));
  std::ofstream(path_of("downloaded/00000_stats.json")) << "{}\n";
  std::ofstream(path_of("downloaded/download.yaml")) << "a: 1\n";
  std::ofstream(path_of("downloaded/shards.targets.jsonl")) << "{\"url\": \"x\"}\n";
  const auto outcome = shell(millrace + " inspect " + path_of("downloaded") + "/*");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output,
              testing::AllOf(HasSubstr("00000_stats.json: passed over"), HasSubstr("download.yaml: passed"),
                             testing::Not(HasSubstr("targets.jsonl: passed"))));
  EXPECT_EQ(inspect(path_of("downloaded/shards.targets.jsonl"))["kind"], "list");
  const auto unknown = path_of("downloaded/download.yaml");
  EXPECT_EQ(shell(millrace + " inspect " + unknown + " " + unknown).exit_code, 2) << "there is nothing else";
}

TEST(InspectCache, ShowsWhatItsLatentsDecodeTo) {
  const auto made = shell(millrace + " preprocess run.dir=" + path_of("filled") + " run.device=cpu model.pipeline=" +
                          path_of("tiny") + " data.train.path=" + path_of("shapes") +
                          " transform.resolution=32 encode.batch_size=8 encode.cache=" + path_of("cache"));
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const auto report = inspect(path_of("cache") + " --pipeline " + path_of("tiny") + " --grid " + path_of("cache.png"));
  EXPECT_EQ(report["captions"]["count"], 96);
  EXPECT_EQ(png_size(path_of("cache.png")), std::pair(8 * (96 + 2) - 2, 8 * (96 + 3 * caption_line + 2) - 2));
  const auto blind = shell(millrace + " inspect " + path_of("cache") + " --grid " + path_of("none.png"));
  EXPECT_EQ(blind.exit_code, 2);
  EXPECT_THAT(blind.output, HasSubstr("--pipeline"));
}

}  // namespace
}  // namespace millrace::e2e
