#include "millrace/generate/prompts.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "core/temp_dir.h"
#include "error_of.h"

namespace millrace {
namespace {

std::vector<ImageRequest> prompts_in(const std::string& name, const std::string& text) {
  const test::TempDir folder;
  std::ofstream(folder / name) << text;
  return read_prompts(folder / name, {"", "blurry", 7});
}

TEST(Prompts, ComeFromEveryKindOfList) {
  const std::string lines = "a red boat\n\ntwo cats, \"asleep\"\r\ngrößer";
  const std::string objects =
      "{\"prompt\": \"a red boat\", \"id\": 1}\n{\"id\": 2, \"prompt\": \"two cats, \\\"asleep\\\"\"}\n"
      "{\"caption\": \"gr\\u00f6\\u00dfer\"}\n";
  const std::string fields = "id,caption\n1,a red boat\n2,\"two cats, \"\"asleep\"\"\"\n3,größer\n";
  const std::string unquoted = "prompt\tid\na red boat\t1\ntwo cats, \"asleep\"\t2\ngrößer\t3\n";
  for (const auto& [name, text] :
       {std::pair("a.txt", lines), std::pair("b.jsonl", objects), std::pair("c.csv", fields),
        std::pair("d.tsv", unquoted), std::pair("names", lines), std::pair("A.TXT", lines),
        std::pair("B.JSONL", objects), std::pair("C.CSV", fields), std::pair("D.Tsv", unquoted)}) {
    const auto requests = prompts_in(name, text);
    ASSERT_EQ(requests.size(), 3u) << name;
    EXPECT_EQ(requests[0].prompt, "a red boat") << name;
    EXPECT_EQ(requests[1].prompt, "two cats, \"asleep\"") << name;
    EXPECT_EQ(requests[2].prompt, "größer") << name;
    EXPECT_EQ(requests[2].negative_prompt, "blurry") << name;
    EXPECT_EQ(requests[2].seed, 9u) << name;
  }
  const test::TempDir folder;
  std::ofstream(folder / "d.csv") << fields;
  ASSERT_EQ(std::system(("gzip " + (folder / "d.csv").string()).c_str()), 0);
  EXPECT_EQ(read_prompts(folder / "d.csv.gz", {}).at(2).prompt, "größer");
  std::filesystem::rename(folder / "d.csv.gz", folder / "D.CSV.GZ");
  EXPECT_EQ(read_prompts(folder / "D.CSV.GZ", {}).at(2).prompt, "größer");
}

TEST(Prompts, MayHaveSeedAndNegativePromptOfTheirOwn) {
  const std::string objects =
      "{\"prompt\": \"a\", \"seed\": 18446744073709551615}\n{\"prompt\": \"b\", \"negative_prompt\": \"\"}\n"
      "{\"prompt\": \"c\", \"seed\": 0, \"negative_prompt\": \"text\", \"caption\": \"another\"}\n";
  const std::string fields = "seed,prompt,negative_prompt\n18446744073709551615,a,blurry\n,b,\n0,c,text\n";
  for (const auto& requests : {prompts_in("a.jsonl", objects), prompts_in("a.csv", fields)}) {
    ASSERT_EQ(requests.size(), 3u);
    EXPECT_EQ(requests[0].seed, 18446744073709551615u);
    EXPECT_EQ(requests[1].seed, 8u);
    EXPECT_EQ(requests[2].seed, 0u);
    EXPECT_EQ(requests[0].negative_prompt, "blurry");
    EXPECT_EQ(requests[1].negative_prompt, "");
    EXPECT_EQ(requests[2].negative_prompt, "text");
    EXPECT_EQ(requests[2].prompt, "c");
  }
}

TEST(Prompts, NameTheFileThatHasNone) {
  const auto complaint_about = [](const std::string& name, const std::string& text) {
    const std::string complaint = test::error_of([&] { prompts_in(name, text); }).what();
    EXPECT_NE(complaint.find(name), complaint.npos) << complaint;
    return complaint;
  };
  using testing::HasSubstr;
  EXPECT_THAT(complaint_about("a.csv", "id,text\n1,a\n"), HasSubstr("has no column prompt or caption"));
  EXPECT_THAT(complaint_about("a.csv", "prompt,seed\na,1\nb\n"), HasSubstr("a.csv:3: 1 fields instead of 2"));
  EXPECT_THAT(complaint_about("b.jsonl", "{\"caption\": \"a\"}\n{\"caption\": null}\n"),
              HasSubstr("row 2 has no prompt"));
  EXPECT_THAT(complaint_about("b.jsonl", "{\"prompt\": \"a\"}\n[]\n"), HasSubstr("b.jsonl:2 does not hold"));
  EXPECT_THAT(complaint_about("b.jsonl", "{\"prompt\": [\"a\", \"b\"]}\n"), HasSubstr("row 1 has no prompt"));
  for (const char* negative : {"3", "{\"x\": 1}"})
    EXPECT_THAT(complaint_about("b.jsonl", fmt::format("{{\"prompt\": \"a\", \"negative_prompt\": {}}}\n", negative)),
                HasSubstr("row 1: negative_prompt is no text"));
  for (const char* seed : {"-1", "1.5", "1e3", "true", "\"one\"", "[1]"})
    EXPECT_THAT(complaint_about("b.jsonl", fmt::format("{{\"prompt\": \"a\", \"seed\": {}}}\n", seed)),
                HasSubstr("row 1: the seed is not a whole number >= 0"))
        << seed;
  EXPECT_THAT(complaint_about("c.txt", "\n\n"), HasSubstr("holds none"));
  for (const char* name : {"d.parquet", "D.PARQUET", "e.JSON"})
    EXPECT_THAT(complaint_about(name, "PAR1"), HasSubstr("is no list of prompts"));
}

TEST(Prompts, AreUtf8) {
  const test::TempDir folder;
  std::ofstream(folder / "prompts.txt") << "a caf\xE9\n\na caf\u00e9\r\n";
  const auto prompts = read_prompts(folder / "prompts.txt", {"", "", 7});
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].prompt, "a caf\uFFFD");
  EXPECT_EQ(prompts[1].prompt, "a caf\u00e9");
  EXPECT_EQ(prompts[1].seed, 8u);
}

}  // namespace
}  // namespace millrace
