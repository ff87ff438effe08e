#include <gtest/gtest.h>

#include "opt_out.h"

namespace millrace {
namespace {

TEST(OptOut, HeadersThatForbidUse) {
  for (const char* line :
       {"X-Robots-Tag: noai", "x-robots-tag: noimageai", "X-ROBOTS-TAG:noindex", "X-Robots-Tag: noimageindex",
        "X-Robots-Tag: noml", "X-Robots-Tag: none", "X-Robots-Tag:  NoAI \r\n", "X-Robots-Tag: nofollow, noai",
        "X-Robots-Tag: noai, noimageai", "X-Robots-Tag: millrace: noai", "X-Robots-Tag: Millrace : noindex, nofollow",
        "X-Robots-Tag: googlebot: nofollow, millrace: noimageai", "X-Robots-Tag: unavailable_after: 1 Jan 2030, noai",
        "tdm-reservation: 1", "TDM-Reservation:1\r\n"})
    EXPECT_FALSE(opt_out_of(line).empty()) << line;
}

TEST(OptOut, HeadersThatDoNot) {
  for (const char* line :
       {"X-Robots-Tag: all", "X-Robots-Tag: nofollow", "X-Robots-Tag: noarchive, nosnippet",
        "X-Robots-Tag:", "X-Robots-Tag: otherbot: noai", "X-Robots-Tag: otherbot: noai, noindex", "X-Robots-Tag: noaix",
        "X-Robots-Tag: millraces: noai", "X-Robots-Tag: unavailable_after: 25 Jun 2030 15:00:00 PST", "X-Robots: noai",
        "tdm-reservation: 0", "tdm-reservation: 10", "tdm-policy: https://example.org/1", "Content-Type: noai", "",
        "\r\n", "HTTP/1.1 200 OK"})
    EXPECT_TRUE(opt_out_of(line).empty()) << line;
}

TEST(OptOut, ARuleWithAValueNamesNoProgram) {
  for (const char* line :
       {"X-Robots-Tag: max-snippet:-1, noai", "X-Robots-Tag: max-image-preview:large, noai",
        "X-Robots-Tag: max-video-preview:-1, noindex", "X-Robots-Tag: max-snippet : 20, millrace: noai",
        "X-Robots-Tag: unavailable_after: Sat, 25 Jun 2030 15:00:00 GMT, noai"})
    EXPECT_FALSE(opt_out_of(line).empty()) << line;
  for (const char* line :
       {"X-Robots-Tag: max-image-preview:none", "X-Robots-Tag: otherbot: nofollow, max-snippet:-1, noai",
        "X-Robots-Tag: other-bot_x: max-image-preview:large, noai", "X-Robots-Tag: AI2Bot: noai, noindex",
        "X-Robots-Tag: archive.org_bot: noindex"})
    EXPECT_TRUE(opt_out_of(line).empty()) << line;
}

}  // namespace
}  // namespace millrace
