#include <gmock/gmock.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/text/tokenizer.h"
#include "millrace/text/tokenizer_folder.h"
#include "test_data.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const json& golden() {
  static const json expected = json::parse(read_file(test::data_dir() / "tokenizer/expected.json"));
  return expected;
}

const json& open_clip_golden() {
  static const json expected = json::parse(read_file(test::data_dir() / "tokenizer/open_clip.json"));
  return expected;
}

const json& added_golden() {
  static const json expected = json::parse(read_file(test::data_dir() / "tokenizer/added.json"));
  return expected;
}

constexpr TokenizerConfig open_clip{.mode = TokenizerConfig::Mode::open_clip, .pad_id = {}};

std::vector<std::int32_t> padded(std::vector<std::int32_t> ids, int pad_id) {
  ids.resize(token_count, pad_id);
  return ids;
}

// Folders like those of SD 1 and SD 2, made once per process.
class TokenizerFolders : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::temp_directory_path() / ("millrace-tokenizer-" + std::to_string(getpid()));
    if (!fs::exists(MILLRACE_CLIP_VOCABULARY)) return;
    for (const auto& [name, folder] : golden()["folders"].items()) {
      write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, root_ / name, folder["pad_token"]);
    }
  }
  static void TearDownTestSuite() { fs::remove_all(root_); }
  void SetUp() override {
    if (!fs::exists(MILLRACE_CLIP_VOCABULARY)) GTEST_SKIP() << "no vocabulary: run scripts/setup";
  }

  // CLIP's vocabulary with these files beside it.
  static fs::path make_folder(const std::string& name, const json& files) {
    const fs::path folder = root_ / name;
    fs::create_directories(folder);
    for (const char* file : {"special_tokens_map.json", "tokenizer_config.json", "vocab.json", "merges.txt"})
      fs::remove(folder / file);
    for (const char* file : {"vocab.json", "merges.txt"}) fs::create_symlink(root_ / "sd1" / file, folder / file);
    for (const auto& [file, content] : files.items()) std::ofstream(folder / file) << content;
    return folder;
  }

  static inline fs::path root_;
};

TEST_F(TokenizerFolders, EqualsTransformers) {
  for (const auto& [name, folder] : golden()["folders"].items()) {
    const auto tokenizer = ClipTokenizer::load(root_ / name);
    EXPECT_EQ(tokenizer.pad_id(), folder["pad_id"]);
    EXPECT_EQ(tokenizer.vocabulary_size(), 49408);
    for (std::size_t i = 0; i < folder["ids"].size(); ++i) {
      const std::string caption = golden()["captions"][i];
      EXPECT_EQ(tokenizer.encode(caption), padded(folder["ids"][i], tokenizer.pad_id()))
          << name << " caption " << i << ": " << caption;
    }
  }
}

TEST_F(TokenizerFolders, EnoughCaptions) {
  EXPECT_GE(golden()["captions"].size(), 300u);
}

TEST_F(TokenizerFolders, AddedTokensAreThoseOfTransformers) {
  for (const auto& [name, expected] : added_golden()["folders"].items()) {
    const auto tokenizer = ClipTokenizer::load(make_folder(name, expected["files"]));
    EXPECT_EQ(tokenizer.vocabulary_size(), expected["size"]) << name;
    EXPECT_EQ(tokenizer.pad_id(), expected["pad_id"]) << name;
    for (std::size_t i = 0; i < expected["ids"].size(); ++i) {
      const std::string caption = added_golden()["captions"][i];
      EXPECT_EQ(tokenizer.encode(caption), padded(expected["ids"][i], tokenizer.pad_id())) << name << ": " << caption;
    }
  }
}

TEST_F(TokenizerFolders, OpenClipHasNoAddedTokens) {
  const fs::path folder = make_folder("with added tokens", {{"added_tokens.json", {{"<cat-toy>", 49408}}}});
  EXPECT_EQ(ClipTokenizer::load(folder).encode("<cat-toy>"), padded({49406, 49408, 49407}, 49407));
  const auto tokenizer = ClipTokenizer::load(folder, open_clip);
  EXPECT_EQ(tokenizer.vocabulary_size(), 49408);
  EXPECT_EQ(tokenizer.encode("<cat-toy>"), ClipTokenizer::load(root_ / "sd1", open_clip).encode("<cat-toy>"));
  const json stripping = {{"content", "<cat-toy>"}, {"lstrip", true}};
  const auto unused =
      make_folder("stripping", {{"tokenizer_config.json", {{"added_tokens_decoder", {{"49408", stripping}}}}}});
  EXPECT_THROW(ClipTokenizer::load(unused), Error);
  EXPECT_EQ(ClipTokenizer::load(unused, open_clip).encode("<cat-toy>"), tokenizer.encode("<cat-toy>"));
}

// Ids known from CLIP's own documentation and from diffusers #4153.
TEST_F(TokenizerFolders, ExclamationMarksAreSplitOffByTheFilesOfSd2) {
  EXPECT_EQ(ClipTokenizer::load(root_ / "sd1").encode("a photo of a cat!"),
            padded({49406, 320, 1125, 539, 320, 2368, 256, 49407}, 49407));
  EXPECT_EQ(ClipTokenizer::load(root_ / "sd2").encode("a photo of a cat!"),
            padded({49406, 320, 1125, 539, 320, 2368, 0, 49407}, 0));
}

// Of Unicode 14, as some captions are, where ICU does not know that yet (67 of RHEL 9).
bool is_too_new_for_icu(const std::string& caption) {
  UVersionInfo version;
  u_getUnicodeVersion(version);
  const auto text = icu::UnicodeString::fromUTF8(caption);
  bool has_unassigned = false;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1))
    has_unassigned |= u_charType(text.char32At(i)) == U_UNASSIGNED;
  return version[0] < 14 && has_unassigned;
}

TEST_F(TokenizerFolders, EqualsOpenClipWhateverTheFolder) {
  for (const char* name : {"sd1", "sd2"}) {
    const auto tokenizer = ClipTokenizer::load(root_ / name, open_clip);
    EXPECT_EQ(tokenizer.pad_id(), 0);
    const json& captions = open_clip_golden()["captions"];
    ASSERT_GE(captions.size(), 500u);
    int left_out = 0;
    for (std::size_t i = 0; i < captions.size(); ++i) {
      const std::string caption = captions[i];
      if (is_too_new_for_icu(caption)) {
        ++left_out;
        continue;
      }
      EXPECT_EQ(tokenizer.encode(caption), padded(open_clip_golden()["ids"][i], 0))
          << name << " caption " << i << ": " << caption;
    }
    if (left_out > 0)
      std::cout << left_out
                << " captions are left out: they hold characters of Unicode 14, which this ICU does not know\n";
  }
}

// diffusers #4153: the ids that SD 2 was trained with.
TEST_F(TokenizerFolders, OpenClipKnowsExclamationMarksAsWords) {
  EXPECT_EQ(ClipTokenizer::load(root_ / "sd2", open_clip).encode("! !! !!!"), padded({49406, 256, 748, 995, 49407}, 0));
}

// What ftfy repairs and we do not: such captions keep the characters that they have.
TEST_F(TokenizerFolders, MojibakeStays) {
  const auto tokenizer = ClipTokenizer::load(root_ / "sd2", open_clip);
  const json& mojibake = open_clip_golden()["mojibake"];
  for (std::size_t i = 0; i < mojibake["captions"].size(); ++i)
    EXPECT_NE(tokenizer.encode(mojibake["captions"][i].get<std::string>()), padded(mojibake["ids"][i], 0));
  EXPECT_EQ(tokenizer.encode("voil\u00C3\u00A0"), tokenizer.encode("VOIL\u00C3\u00A0"));
}

TEST_F(TokenizerFolders, DeeplyNestedReferencesEnd) {
  std::string nested = "&";
  for (int i = 0; i < 50000; ++i) nested += "amp;";
  EXPECT_EQ(ClipTokenizer::load(root_ / "sd2", open_clip).encode(nested).size(), 77u);
}

TEST_F(TokenizerFolders, PadIdComesFromTheMapThenTheConfigThenTheKey) {
  const fs::path folder = root_ / "changed";
  fs::create_directories(folder);
  fs::copy(root_ / "sd2", folder, fs::copy_options::recursive);
  EXPECT_EQ(ClipTokenizer::load(folder).pad_id(), 0);
  fs::remove(folder / "special_tokens_map.json");
  EXPECT_EQ(ClipTokenizer::load(folder).pad_id(), 49407);
  fs::remove(folder / "tokenizer_config.json");
  EXPECT_EQ(ClipTokenizer::load(folder).pad_id(), 49407);
  EXPECT_EQ(ClipTokenizer::load(folder, {.mode = {}, .pad_id = {5}}).encode("")[2], 5);
}

TEST_F(TokenizerFolders, InvalidUtf8AndVeryLongWordsAreFine) {
  const auto tokenizer = ClipTokenizer::load(root_ / "sd1");
  EXPECT_EQ(tokenizer.encode("a\xFF\xC3(b"), tokenizer.encode("a\uFFFD\uFFFD(b"));
  const auto cleaning = ClipTokenizer::load(root_ / "sd1", open_clip);
  EXPECT_EQ(cleaning.encode("a\xFF\xC3(b"), cleaning.encode("a\uFFFD\uFFFD(b"));
  EXPECT_EQ(tokenizer.encode(std::string(1 << 18, 'z')).size(), 77u);
}

TEST_F(TokenizerFolders, ErrorsNameTheFile) {
  const auto message_of = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message_of([] { ClipTokenizer::load(root_ / "nowhere"); }), HasSubstr("vocab.json"));
  const fs::path folder = root_ / "broken";
  fs::create_directories(folder);
  fs::copy(root_ / "sd1", folder, fs::copy_options::recursive);
  for (const char* file : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string sound = read_file(folder / file);
    for (const char* text : {"{", "[1]", R"({"pad_token": "!", "pad_token": "!"})"}) {
      std::ofstream(folder / file) << text;
      EXPECT_THAT(message_of([&] { ClipTokenizer::load(folder); }), HasSubstr(file)) << text;
    }
    std::ofstream(folder / file) << sound;
  }
  const auto complaint_about = [&](const json& files) {
    return message_of([&] { ClipTokenizer::load(make_folder("broken too", files)); });
  };
  EXPECT_THAT(complaint_about({{"added_tokens.json", {{"<cat-toy>", "49408"}}}}), HasSubstr("added_tokens.json"));
  EXPECT_THAT(complaint_about({{"added_tokens.json", json::object()}, {"tokenizer.json", {{"added_tokens", {"x"}}}}}),
              HasSubstr("tokenizer.json"));
  const auto listed = [](const char* id, const json& token) {
    return json{{"tokenizer_config.json", {{"added_tokens_decoder", {{id, token}}}}}};
  };
  EXPECT_THAT(complaint_about(listed("first", {{"content", "x"}})), HasSubstr("added_tokens_decoder: 'first'"));
  EXPECT_THAT(complaint_about(listed("49408", {{"content", "x"}, {"lstrip", true}})), HasSubstr("lstrip"));
  EXPECT_THAT(complaint_about(listed("49408", 1)), HasSubstr("broken too"));
  const std::string merges = read_file(folder / "merges.txt");
  for (const std::size_t kept : {std::size_t{0}, merges.size() / 2, merges.size() * 9 / 10}) {
    std::ofstream(folder / "merges.txt") << merges.substr(0, merges.rfind('\n', kept) + 1);
    EXPECT_THAT(message_of([&] { ClipTokenizer::load(folder); }), HasSubstr("cannot make the 49408 tokens")) << kept;
  }
  std::ofstream(folder / "merges.txt") << "#version: 0.2\nnot_a_token x\n";
  EXPECT_THAT(message_of([&] { ClipTokenizer::load(folder); }), HasSubstr("merges.txt"));
  std::ofstream(folder / "vocab.json") << "[1]";
  EXPECT_THAT(message_of([&] { ClipTokenizer::load(folder); }), HasSubstr("vocab.json"));
}

}  // namespace
}  // namespace millrace
