// The files that `millrace evaluate` reads and writes by itself: captions, evaluation.jsonl, the page of a sweep.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <tuple>

#include "core/temp_dir.h"
#include "error_of.h"
#include "evaluate/captions.h"
#include "evaluate/content_name.h"
#include "evaluate/evaluation_file.h"
#include "evaluate/image_folder.h"
#include "evaluate/sweep_page.h"
#include "millrace/core/files.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> wanted = {"a red boat", "two cats, \"asleep\"", "größer"};

TEST(Captions, AreReadFromEveryKindOfFile) {
  const test::TempDir dir;
  const auto captions_in = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir.path() / name) << text;
    return read_captions(dir.path() / name).captions;
  };
  EXPECT_EQ(captions_in("a.txt", "a red boat\n\ntwo cats, \"asleep\"\r\ngrößer"), wanted);
  EXPECT_EQ(captions_in("b.jsonl",
                        "{\"caption\": \"a red boat\", \"id\": 1}\n{\"id\": 2, \"caption\": \"two cats, "
                        "\\\"asleep\\\"\"}\n{\"caption\": \"gr\\u00f6\\u00dfer\"}\n"),
            wanted);
  EXPECT_EQ(captions_in("c.jsonl",
                        "{\"prompt\": \"a red boat\"}\n{\"prompt\": \"two cats, \\\"asleep\\\"\"}\n"
                        "{\"prompt\": \"größer\"}\n"),
            wanted);
  EXPECT_EQ(captions_in("d.csv", "id,caption\n1,a red boat\n2,\"two cats, \"\"asleep\"\"\"\n3,größer\n"), wanted);
  EXPECT_EQ(captions_in("e.tsv", "prompt\tid\na red boat\t1\ntwo cats, \"asleep\"\t2\ngrößer\t3\n"), wanted);
  ASSERT_EQ(std::system(("gzip -k " + (dir.path() / "d.csv").string()).c_str()), 0);
  EXPECT_EQ(read_captions(dir.path() / "d.csv.gz").captions, wanted);
}

CaptionList list_of(const test::TempDir& dir, const std::string& name, const std::string& text) {
  std::ofstream(dir.path() / name) << text;
  return read_captions(dir.path() / name);
}

// What `millrace generate` takes from the same file.
TEST(Captions, ColumnsThatCountForNothingAreTold) {
  const test::TempDir dir;
  const auto list = list_of(
      dir, "a.jsonl", "{\"caption\": \"a\", \"prompt\": \"b\", \"seed\": 7, \"negative_prompt\": \"c\", \"id\": 1}\n");
  EXPECT_EQ(list.captions, std::vector<std::string>{"a"});
  EXPECT_EQ(ignored_columns(list, /*paints=*/true), (std::vector<std::string>{"prompt", "seed", "negative_prompt"}));
  EXPECT_EQ(ignored_columns(list, /*paints=*/false), std::vector<std::string>{"prompt"});
  for (const auto& plain : {list_of(dir, "b.csv", "prompt,id\na,1\n"), list_of(dir, "c.txt", "seed\n")})
    EXPECT_TRUE(ignored_columns(plain, /*paints=*/true).empty());
}

TEST(Captions, GoWithThePicturesThatTheirRowsName) {
  const test::TempDir dir;
  const std::vector<fs::path> pictures = {"out/0.png", "out/1.png", "out/10.png"};
  const auto complaint = [&](const CaptionList& list) {
    const auto error = test::error_of([&] { captions_of(pictures, list); });
    EXPECT_EQ(error.exit(), Exit::usage);
    return std::string(error.what());
  };
  const auto as_generate = [](const std::vector<std::string>& names) {  // lines of its images.jsonl
    std::string text;
    for (const auto& name : names)
      text += Json{{"index", 0}, {"file", name}, {"prompt", "of " + name}, {"seed", 3}}.dump() + "\n";
    return text;
  };
  const auto list = list_of(dir, "a.jsonl", as_generate({"1.png", "10.png", "2.png", "0.png"}));
  EXPECT_EQ(captions_of(pictures, list), (std::vector<std::string>{"of 0.png", "of 1.png", "of 10.png"}));
  EXPECT_NE(complaint(list_of(dir, "b.jsonl", as_generate({"0.png", "10.png", "2.png"}))).find("out/1.png"),
            std::string::npos);
  EXPECT_NE(complaint(list_of(dir, "c.csv", "file,caption\n0.png,a\n1.png,b\n10.png,c\n1.png,d\n"))
                .find("rows 2 and 4 are both of out/1.png"),
            std::string::npos);
  // Also where column file has the names of other pictures.
  for (const auto& in_order : {list_of(dir, "d.csv", "caption\na\nb\nc\nd\n"),
                               list_of(dir, "f.csv", "file,caption\n7.jpg,a\n8.jpg,b\n9.jpg,c\n")})
    EXPECT_EQ(captions_of(pictures, in_order), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_NE(complaint(list_of(dir, "e.txt", "a\nb\n")).find("2 captions for 3 pictures"), std::string::npos);
}

TEST(Captions, NameTheFileThatHasNone) {
  const test::TempDir dir;
  const auto complaint_about = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir.path() / name) << text;
    const std::string complaint = test::error_of([&] { read_captions(dir.path() / name); }).what();
    EXPECT_NE(complaint.find(name), complaint.npos) << complaint;
    return complaint;
  };
  EXPECT_NE(complaint_about("a.csv", "id,text\n1,a\n").find("no column caption or prompt"), std::string::npos);
  EXPECT_NE(complaint_about("b.jsonl", "{\"caption\": \"a\"}\n{\"caption\": null}\n").find("row 2"), std::string::npos);
  EXPECT_NE(complaint_about("a.csv", "caption\na cat\na cat, asleep\n").find("a.csv:3: 2 fields instead of 1"),
            std::string::npos);
  EXPECT_NE(
      complaint_about("b.jsonl", "{\"caption\": \"a\"}\n{\"caption\": [\"a\", \"b\"]}\n").find("row 2 has no caption"),
      std::string::npos);
  EXPECT_NE(complaint_about("b.jsonl", "{\"caption\": \"a\"}\nno json\n").find("b.jsonl:2"), std::string::npos);
  EXPECT_NE(complaint_about("c.txt", "\n\n").find("holds none"), std::string::npos);
  complaint_about("d.parquet", "PAR1");
}

Json line_of(int step, double scale, double fid, const std::string& digest = "a") {
  return {{"step", step}, {"digest", digest},         {"guidance_scale", scale},
          {"fid", fid},   {"clip_score", 20 + scale}, {"protocol", {{"steps", 50}}}};
}

TEST(ImageFolder, IsInByteOrder) {
  const test::TempDir dir;
  for (const char* name : {"100000.png", "00007.png", "99999.png", "10000.PNG", "b.jpg", "a.webp"})
    std::ofstream(dir.path() / name) << "x";
  std::vector<std::string> names;
  for (const auto& file : list_images(dir.path())) names.push_back(file.filename().string());
  EXPECT_EQ(names, (std::vector<std::string>{"00007.png", "10000.PNG", "100000.png", "99999.png", "a.webp", "b.jpg"}));
}

TEST(ImageFolder, KnowsNumbersThatAreOutOfTheirOrder) {
  const auto late = [](const std::vector<fs::path>& files) {
    return find_late_number(files).value_or("none").string();
  };
  EXPECT_EQ(late({"a/0.png", "a/1.png", "a/10.png", "a/2.png"}), "a/2.png");
  EXPECT_EQ(late({"a/00000.png", "a/00001.jpg", "a/00010.png"}), "none");
  EXPECT_EQ(late({"8.png", "9.png"}), "none");
  EXPECT_EQ(late({"10.png", "2.png", "cat.png"}), "none") << "nobody has counted these";
}

TEST(EvaluationFile, HoldsOneLinePerStepAndScale) {
  const test::TempDir dir;
  const auto path = dir.path() / "evaluation.jsonl";
  EvaluationFile file(path);
  file.put(line_of(2, 7.5, 30));
  file.put(line_of(2, 1.5, 40));
  file.put(line_of(4, 7.5, 20));
  file.put(line_of(2, 7.5, 31, "b"));  // trained again
  EXPECT_TRUE(file.holds(line_of(2, 7.5, 0, "b")));
  EXPECT_FALSE(file.holds(line_of(2, 7.5, 0, "a")));
  auto other = line_of(4, 7.5, 0);
  other["protocol"]["steps"] = 20;
  EXPECT_FALSE(file.holds(other));
  const auto text = read_file(path);
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  std::ofstream(path, std::ios::app) << "{\"step\": 6, \"fi";  // cut short
  const EvaluationFile again(path);
  EXPECT_TRUE(again.holds(line_of(4, 7.5, 0)));
  EXPECT_TRUE(again.holds(line_of(2, 1.5, 0)));
}

TEST(EvaluationFile, TwoRunsDoNotEraseEachOther) {
  const test::TempDir dir;
  const auto path = dir.path() / "evaluation.jsonl";
  EvaluationFile file(path);
  const auto of = [](const std::string& run, const std::string& digest) {
    auto line = line_of(2, 7.5, 30, digest);
    line["checkpoint"] = run + "/checkpoints/step-00000002";
    return line;
  };
  file.put(of("one/run", "a"));
  file.put(of("other/run", "b"));
  EXPECT_TRUE(file.holds(of("one/run", "a")));
  EXPECT_TRUE(file.holds(of("one/../other/run", "b")));
  EXPECT_TRUE(file.holds(of("moved/run", "b")));
  file.put(of("other/run", "c"));  // trained again
  const auto text = read_file(path);
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
}

TEST(EvaluationFile, TakesPathsThatAreNotUtf8) {
  const test::TempDir dir;
  const auto path = dir.path() / "evaluation.jsonl";
  EvaluationFile(path).put({{"checkpoint", "caf\xe9/im"}, {"fid", 1}});
  const auto text = read_file(path);
  EXPECT_NE(text.find("caf\xef\xbf\xbd/im"), std::string::npos) << text;
}

// Lines of before, and of checkpoints with one set of weights, are those of an export.
TEST(EvaluationFile, RawWeightsHaveALineOfTheirOwn) {
  const test::TempDir dir;
  const auto path = dir.path() / "evaluation.jsonl";
  EvaluationFile file(path);
  const auto of = [](const char* weights) {
    auto line = line_of(2, 7.5, 30);
    line["weights"] = weights;
    return line;
  };
  const auto lines = [&] {
    const auto text = read_file(path);
    return std::ranges::count(text, '\n');
  };
  file.put(line_of(2, 7.5, 30));
  EXPECT_FALSE(file.holds(of("raw")));
  file.put(of("raw"));
  EXPECT_TRUE(file.holds(line_of(2, 7.5, 30)));
  EXPECT_EQ(lines(), 2);
  for (const char* weights : {"ema", "raw"}) file.put(of(weights));
  EXPECT_TRUE(file.holds(of("ema")));
  EXPECT_TRUE(file.holds(of("raw")));
  EXPECT_EQ(lines(), 2);
  EXPECT_EQ(file.sweep_of(of("raw")).size(), 1u);
}

TEST(ContentName, TellsContentsAndNotPaths) {
  const test::TempDir dir;
  fs::create_directories(dir.path() / "elsewhere");
  std::ofstream(dir.path() / "a.txt") << "a red boat\n";
  fs::copy_file(dir.path() / "a.txt", dir.path() / "elsewhere/a.txt");
  const auto before = content_name_of_file(dir.path() / "a.txt");
  EXPECT_EQ(before.find("a.txt (xxh3 "), 0u) << before;
  EXPECT_EQ(content_name_of_file(dir.path() / "elsewhere/../elsewhere/a.txt"), before);
  std::ofstream(dir.path() / "a.txt") << "a red boot\n";
  EXPECT_NE(content_name_of_file(dir.path() / "a.txt"), before);
  EXPECT_EQ(test::error_of([&] { content_name_of_file(dir.path() / "none"); }).exit(), Exit::io);
  // Of large files the middle is not read: their size, begin and end.
  const auto large = dir.path() / "large";
  std::ofstream(large) << "begin";
  fs::resize_file(large, std::uintmax_t{300} << 20);
  const auto empty = content_name_of_file(large);
  fs::resize_file(large, (std::uintmax_t{300} << 20) + 1);
  EXPECT_NE(content_name_of_file(large), empty);
  fs::resize_file(large, (std::uintmax_t{300} << 20) - 3);
  std::ofstream(large, std::ios::app) << "end";
  EXPECT_NE(content_name_of_file(large), empty);
}

TEST(ContentName, CountsImagesAndReadsNetworks) {
  const test::TempDir dir;
  const auto put = [&](const std::string& name, const std::string& text) { std::ofstream(dir.path() / name) << text; };
  put("1.png", "12345");
  put("2.jpg", "123");
  const auto name = dir.path().filename().string();
  EXPECT_EQ(content_name_of_images(dir.path()), name + " (2 images, 8 bytes)");
  EXPECT_EQ(content_name_of_images(dir.path() / "."), name + " (2 images, 8 bytes)");
  put("model.safetensors", "a");
  const auto before = content_name_of_network(dir.path());
  put("README.md", "about it");
  EXPECT_EQ(content_name_of_network(dir.path()), before);
  put("preprocessor_config.json", "{}");
  const auto with_settings = content_name_of_network(dir.path());
  EXPECT_NE(with_settings, before);
  put("model.safetensors", "b");
  EXPECT_NE(content_name_of_network(dir.path()), with_settings);
}

TEST(EvaluationFile, ASweepIsOfOneModelAndOneProtocol) {
  const test::TempDir dir;
  EvaluationFile file(dir.path() / "evaluation.jsonl");
  for (const auto& line : {line_of(2, 8, 30), line_of(2, 1.5, 25), line_of(4, 3, 10), line_of(2, 5, 20, "older")})
    file.put(line);
  auto other = line_of(2, 4, 15);
  other["protocol"]["steps"] = 20;
  file.put(other);
  const auto sweep = file.sweep_of(line_of(2, 0, 0));
  ASSERT_EQ(sweep.size(), 2u);
  EXPECT_EQ(sweep[0]["guidance_scale"], 1.5);
  EXPECT_EQ(sweep[1]["guidance_scale"], 8);
  // Of pipelines, which have no step, by their folder.
  for (const char* folder : {"one", "two"})
    for (const double scale : {1.0, 4.0})
      file.put({{"checkpoint", folder}, {"guidance_scale", scale}, {"fid", 1}, {"clip_score", 2}});
  EXPECT_EQ(file.sweep_of({{"checkpoint", "one"}}).size(), 2u);
}

TEST(SweepPage, NeedsTwoPoints) {
  std::vector<Json> lines = {line_of(2, 1.5, 25.25)};
  EXPECT_FALSE(render_sweep("step 2", lines));
  lines.push_back(line_of(2, 8, 30.5));
  const auto page = render_sweep("<step 2>", lines);
  ASSERT_TRUE(page);
  for (const char* text : {"FID over CLIP score", "&lt;step 2&gt;", "<svg", ">25.25<", ">30.5<", ">21.5<", ">28<"})
    EXPECT_NE(page->find(text), page->npos) << text;
  lines[1].erase("fid");
  EXPECT_FALSE(render_sweep("step 2", lines));
}

// The CLIP score falls again at high guidance: the curve bends back.
TEST(SweepPage, PointsAreInTheOrderOfTheirScales) {
  std::vector<Json> lines;
  for (const auto& [scale, clip, fid] :
       {std::tuple{1.5, 20.0, 30.0}, {6.0, 25.0, 20.0}, {7.0, 24.0, 22.0}, {8.0, 24.0, 24.0}})
    lines.push_back({{"guidance_scale", scale}, {"fid", fid}, {"clip_score", clip}});
  const auto page = render_sweep("a", lines);
  ASSERT_TRUE(page);
  for (const char* label : {">1.5</text>", ">6</text>", ">7</text>", ">8</text>"})
    EXPECT_NE(page->find(label), page->npos) << label;
  const auto begin = page->find("d=\"", page->find("class=\"curve")), end = page->find("/>", begin);
  std::vector<double> places;
  for (auto at = page->find_first_of("ML", begin); at < end; at = page->find_first_of("ML", at + 1))
    places.push_back(std::stod(page->substr(at + 1)));
  ASSERT_EQ(places.size(), 4u) << "of two scales with one CLIP score, too";
  EXPECT_LT(places[0], places[2]);
  EXPECT_LT(places[2], places[1]);
  EXPECT_EQ(places[2], places[3]);
}

}  // namespace
}  // namespace millrace
