#include "millrace/core/visible.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Visible, TextOfAnyScriptStaysAsItIs) {
  for (const char* text :
       {"", "a b\tc", "na\u00efve \u65e5\u672c \U0001F388", "\u00a0\u2027\u202f\u2065\u206a\ufffd"}) {
    EXPECT_EQ(visible(text), text);
    EXPECT_EQ(visible_line(text), text);
  }
}

TEST(Visible, WhatTerminalsObeyIsSpelt) {
  for (const auto& [text, expected] : std::initializer_list<std::pair<std::string, const char*>>{
           {"\x1b[2J\r\x7f", "\\x1b[2J\\x0d\\x7f"},
           {std::string(1, '\0'), "\\x00"},
           {"\u0080\u009b2J\u009f", "\\u0080\\u009b2J\\u009f"},                         // C1 in UTF-8
           {"\u202ajpg.\u202egpj\u2066\u2069", "\\u202ajpg.\\u202egpj\\u2066\\u2069"},  // other directions
           {"\u2028\u2029", "\\u2028\\u2029"}}) {
    EXPECT_EQ(visible(text), expected);
    EXPECT_EQ(visible_line(text), expected);
  }
}

TEST(Visible, BytesThatAreNoUtf8AreSpelt) {
  EXPECT_EQ(visible("\x9b"
                    "2J caf\xe9, \xc0\x9b \xed\xa0\x80 \xe2\x80"),
            "\\x9b2J caf\\xe9, \\xc0\\x9b \\xed\\xa0\\x80 \\xe2\\x80");
}

TEST(Visible, FurtherLinesAreSetOffOrSpelt) {
  EXPECT_EQ(visible("a\nb\n  c\n d\n\ne\n"), "a\n  b\n  c\n   d\n  \n  e");
  EXPECT_EQ(visible_line("a\nb\n  c\n"), "a\\nb\\n  c\\n");
  EXPECT_EQ(visible("\n12:00:00 error"), "\n  12:00:00 error");
}

TEST(Visible, TwiceIsAsOnce) {
  const auto once = visible("a\n\x1b\u0085\x9b\u202e");
  EXPECT_EQ(visible(once), once);
}

}  // namespace
}  // namespace millrace
