// Captions of half a million bytes, of every kind that has made or could make a step of the tokenizer quadratic: each
// takes a second at most where it is linear, minutes or hours where it is not.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <functional>
#include <random>

#include "dataset/temp_archives.h"
#include "millrace/text/tokenizer.h"
#include "millrace/text/tokenizer_folder.h"
#include "unicode.h"

namespace millrace {
namespace {

constexpr std::size_t bytes = 1 << 19;

std::string repeat(const std::string& unit, std::size_t size = bytes) {
  std::string text;
  while (text.size() < size) text += unit;
  return text;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

TEST(LongCaptions, TakeTimeInProportion) {
  if (!fs::exists(MILLRACE_CLIP_VOCABULARY)) GTEST_SKIP() << "no vocabulary: run scripts/setup";
  const test::TempFolder folder;
  write_clip_tokenizer_folder(MILLRACE_CLIP_VOCABULARY, folder.path("clip"), "!");
  std::vector<std::string> captions;
  for (const char* unit : {"a",
                           "theinger",
                           "7",
                           "!",
                           "!?.,-",
                           "\uFFFD",
                           "\U0001F600",
                           "\u65E5",
                           "'",
                           "<|",
                           "&",
                           "&amp;amp;",
                           "&#",
                           "\x1B[1;",
                           "\n",
                           " ",
                           "\xFF",
                           "\uFB03",
                           "\u0300\u0315",
                           "\u0345\u0315\u0300\u0323",
                           "\u0F73\u0315",
                           "\u03A3."})
    captions.push_back(repeat(unit));
  captions.push_back(std::string(bytes, '\0'));
  captions.push_back("e" + repeat("\u0315", bytes / 2) + repeat("\u0301", bytes / 2));
  captions.push_back(repeat("\u03A3", bytes / 2) + repeat(".", bytes / 2));
  using Mode = TokenizerConfig::Mode;
  for (const Mode mode : {Mode::hf, Mode::open_clip}) {
    const auto tokenizer = ClipTokenizer::load(folder.path("clip"), {.mode = mode, .pad_id = {}});
    for (const std::string& caption : captions) {
      const double before = cpu_seconds();
      EXPECT_EQ(tokenizer.encode(caption).size(), static_cast<std::size_t>(token_count));
      EXPECT_LT(cpu_seconds() - before, 10) << "mode " << static_cast<int>(mode) << ": " << caption.substr(0, 20);
    }
  }
}

// Long runs of marks are sorted before ICU sees them; it must not notice.
TEST(LongCaptions, MarksAreComposedAsUnicodeSays) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* const composed = icu::Normalizer2::getNFCInstance(status);
  ASSERT_TRUE(U_SUCCESS(status));
  std::vector<UChar32> marks;
  for (UChar32 c = 0x300; c <= 0x10FFFF; ++c)
    if (u_getIntPropertyValue(c, UCHAR_LEAD_CANONICAL_COMBINING_CLASS) != 0) marks.push_back(c);
  constexpr UChar32 letters[] = {'a', 0xE1, 0x1EA5, 0xAC00, 0x1100, 0x1161, 0x11A8, 0xF40, 0x9DD, 0x65E5, 0x1F600};
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    icu::UnicodeString text;
    for (int part = 0; part < 4; ++part) {
      text.append(letters[random() % std::size(letters)]);
      const std::size_t run = random() % 200, kinds = random() % 2 ? marks.size() : 40;
      for (std::size_t i = 0; i < run; ++i) text.append(marks[random() % kinds]);
    }
    ASSERT_EQ(to_utf8(compose(text)), to_utf8(composed->normalize(text, status))) << "round " << round;
  }
}

}  // namespace
}  // namespace millrace
