#include <gtest/gtest.h>

#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"

namespace millrace {
namespace {

// Digests of the empty input as published with xxHash.
TEST(Hash, MatchesThePublishedDigests) {
  EXPECT_EQ(hash64(""), 0x2D06800538D394C2u);
  EXPECT_EQ(hash128("").hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, InPiecesEqualsAtOnce) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i);
  Hasher128 hasher;
  for (std::size_t i = 0; i < text.size(); i += 777) {
    const std::string piece = text.substr(i, 777);
    hasher.update(piece.data(), piece.size());
  }
  const Hasher128 moved = std::move(hasher);
  EXPECT_EQ(moved.digest(), hash128(text));
}

TEST(Hash, HexGoesThereAndBack) {
  const Hash128 hash = hash128("abc");
  EXPECT_EQ(Hash128::from_hex(hash.hex()), hash);
  EXPECT_EQ((Hash128{1, 2}.hex()), "00000000000000010000000000000002");
  for (const char* text : {"", "12", "zz000000000000010000000000000002", "-0000000000000010000000000000002"}) {
    EXPECT_THROW(Hash128::from_hex(text), Error) << text;
  }
}

}  // namespace
}  // namespace millrace
