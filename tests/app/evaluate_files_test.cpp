// The files that `millrace evaluate` reads and writes by itself: captions, evaluation.jsonl, the page of a sweep.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "core/temp_dir.h"
#include "error_of.h"
#include "evaluate/captions.h"
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
    return read_captions(dir.path() / name);
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
  EXPECT_EQ(read_captions(dir.path() / "d.csv.gz"), wanted);
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

}  // namespace
}  // namespace millrace
