#include "gunzip_stream.h"

#include <array>
#include <random>

#include "gzip_bytes.h"
#include "millrace/core/storage_error.h"
#include "support.h"

namespace millrace::test {
namespace {

std::string half_random(std::size_t size, unsigned seed) {
  std::mt19937 dice(seed);
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i / 1000 % 2 ? dice() : 'a' + i % 7);
  return text;
}

struct Unpacked {
  std::string bytes, error;
};

Unpacked unpack(std::unique_ptr<ByteStream> packed, std::size_t block) {
  GunzipStream stream(std::move(packed));
  Unpacked unpacked;
  std::vector<std::byte> buffer(block);
  try {
    while (const std::size_t got = stream.read(buffer)) unpacked.bytes += as_text({buffer.data(), got});
    stream.finish();
  } catch (const Error& error) {
    unpacked.error = error.what();
    EXPECT_EQ(error_of([&] { stream.finish(); }).what(), unpacked.error);
    EXPECT_EQ(error_of([&] { stream.read(buffer); }).what(), unpacked.error);
  }
  return unpacked;
}

Unpacked unpack(const std::string& packed, std::size_t piece = std::string::npos, std::size_t block = 64 << 10) {
  return unpack(std::make_unique<Pieces>(packed, piece), block);
}

TEST(GunzipStream, WhatIsNotPackedStaysAsItIs) {
  for (const std::string& plain :
       {std::string(), std::string("x"), std::string("\x1f\x8b\x08"), std::string("\x1f\x8bname.jpg"),
        std::string("\x1f\x8b\x08\xe0"), half_random(200'000, 8)}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::string::npos})
      for (const std::size_t block : {1, 1000, 1 << 20}) {
        const Unpacked passed_on = unpack(plain, piece, block);
        EXPECT_TRUE(passed_on.bytes == plain) << plain.size() << " " << piece << " " << block;
        EXPECT_EQ(passed_on.error, "");
      }
  }
}

TEST(GunzipStream, TellsWhichBytesAreTheSourcesOwn) {
  GunzipStream plain(std::make_unique<Pieces>("some text", 5));
  EXPECT_FALSE(plain.is_passed_on()) << "not known yet";
  std::array<std::byte, 4> buffer;
  EXPECT_EQ(plain.read(buffer), 4u);
  EXPECT_FALSE(plain.is_passed_on()) << "one was looked at";
  EXPECT_EQ(plain.read(buffer), 1u);
  EXPECT_TRUE(plain.is_passed_on());
  EXPECT_FALSE(plain.is_packed());
  GunzipStream packed(std::make_unique<Pieces>(gzip("some text")));
  EXPECT_EQ(packed.read(buffer), 4u);
  EXPECT_FALSE(packed.is_passed_on());
  EXPECT_TRUE(packed.is_packed());
}

TEST(GunzipStream, PiecesAndBlocksOfAnySize) {
  const std::string text = half_random(200'000, 1);
  const std::string first = text.substr(0, 77'777), second = text.substr(77'777);
  const std::string packed = gzip("") + gzip(first) + gzip("") + gzip("") + gzip(second, 0) + gzip("");
  for (const std::size_t piece : {std::size_t{1}, std::size_t{9}, std::size_t{4096}, std::string::npos})
    for (const std::size_t block : {1, 1000, 64 << 10, 1 << 20}) {
      const Unpacked unpacked = unpack(packed, piece, block);
      EXPECT_TRUE(unpacked.bytes == text) << piece << " " << block;
      EXPECT_EQ(unpacked.error, "");
    }
  EXPECT_EQ(unpack(gzip("")).bytes, "");
  EXPECT_EQ(unpack(gzip("")).error, "");
}

TEST(GunzipStream, FillsTheBufferAndCountsWhatItUses) {
  const std::string packed = gzip(half_random(100'000, 2)) + gzip(half_random(10'000, 3));
  GunzipStream stream(std::make_unique<Pieces>(packed + "rubbish", 100));
  std::vector<std::byte> buffer(60'000);
  EXPECT_EQ(stream.read(buffer), 60'000u);
  EXPECT_LT(stream.used(), packed.size());
  EXPECT_EQ(stream.read(buffer), 50'000u);
  EXPECT_EQ(stream.used(), packed.size());
  EXPECT_EQ(stream.read(buffer), 0u);
}

TEST(GunzipStream, EveryByteBeforeACut) {
  const std::string packed = gzip(half_random(150'000, 4));
  for (std::size_t length = 4; length < packed.size(); length += length < 40 ? 1 : 997) {
    const Unpacked unpacked = unpack(packed.substr(0, length));
    EXPECT_TRUE(unpacked.bytes == gunzip_front(packed.substr(0, length))) << length;
    EXPECT_TRUE(unpack(packed.substr(0, length), 100, 50).bytes == unpacked.bytes)
        << "a match may be handed out in parts";
    EXPECT_EQ(unpacked.error, "truncated gzip input") << length;
  }
  for (std::size_t missing = 1; missing <= 8; ++missing) {
    const Unpacked unpacked = unpack(packed.substr(0, packed.size() - missing));
    EXPECT_EQ(unpacked.bytes.size(), 150'000u);
    EXPECT_EQ(unpacked.error, "truncated gzip input");
  }
}

TEST(GunzipStream, EveryByteBeforeTheDamage) {
  const std::string good = half_random(100'000, 5), packed = gzip(good);
  std::string damaged = gzip("never read");
  damaged[10] |= 6;  // a kind of block that does not exist
  const Unpacked unpacked = unpack(packed + damaged);
  EXPECT_TRUE(unpacked.bytes == good);
  EXPECT_EQ(unpacked.error, "gzip decompression failed");
}

TEST(GunzipStream, WhatFollowsIsIgnoredUnlessItIsAMember) {
  const std::string packed = gzip("text");
  for (const std::string& behind :
       {std::string(1, '\0'), std::string(100'000, '\0'), std::string("rubbish, much of it"), packed.substr(0, 9)}) {
    EXPECT_EQ(unpack(packed + behind).bytes, "text");
    EXPECT_EQ(unpack(packed + behind, 1).error, "");
  }
  EXPECT_EQ(unpack(packed + packed.substr(0, 10)).bytes, "text");
  EXPECT_EQ(unpack(packed + packed.substr(0, 10)).error, "truncated gzip input");
}

TEST(GunzipStream, ChecksumsAreNotCompared) {
  std::string packed = gzip("text");
  packed[packed.size() - 8] ^= 1;
  packed[packed.size() - 1] ^= 1;
  EXPECT_EQ(unpack(packed + gzip(" and more")).bytes, "text and more");
  EXPECT_EQ(unpack(packed).error, "");
}

// As itself, behind the bytes before it, and never as a cut.
TEST(GunzipStream, StorageThatFails) {
  const std::string packed = gzip(half_random(100'000, 6));
  const auto fail = [] { throw StorageError("x", "EIO", "cannot read x: EIO"); };
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, packed.size() / 2, packed.size()}) {
    const std::string front = packed.substr(0, length);
    GunzipStream stream(std::make_unique<Pieces>(front, 777, fail));
    std::string bytes;
    EXPECT_THROW(
        {
          std::vector<std::byte> buffer(30'000);
          while (const std::size_t got = stream.read(buffer)) bytes += as_text({buffer.data(), got});
        },
        StorageError);
    EXPECT_TRUE(bytes == gunzip_front(front)) << length;
    EXPECT_THROW(stream.finish(), StorageError);
  }
}

}  // namespace
}  // namespace millrace::test
