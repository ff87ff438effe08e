#include <random>

#include "gzip_bytes.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/tar.h"
#include "support.h"
#include "tar_bytes.h"

// Archives that gzip has packed: whole ones read as plain ones, and cut ones give all that is before the cut.
namespace millrace::test {
namespace {

using Samples = std::vector<std::pair<std::string, decltype(TarSample::fields)>>;

struct Contents {
  Samples samples;
  std::optional<BrokenArchive> error;
};

Contents contents_of(TarReader reader) {
  Contents contents;
  while (auto sample = reader.next()) {
    EXPECT_EQ(sample->end, 0u) << "known of plain files only";
    contents.samples.emplace_back(sample->key, std::move(sample->fields));
  }
  contents.error = reader.error();
  return contents;
}

Contents contents_of(const std::string& bytes, std::size_t piece = std::string::npos) {
  return contents_of(TarReader(std::make_unique<Pieces>(bytes, piece), "x.tar.gz"));
}

// What packs badly, as images do, beside what packs well.
std::string random_tar(int samples, unsigned seed) {
  std::mt19937 dice(seed);
  std::string tar;
  for (int i = 0; i < samples; ++i) {
    std::string image(dice() % 4000, '\0');
    for (char& c : image) c = static_cast<char>(dice());
    tar += tar_member(fmt::format("{:04}.jpg", i), image);
    tar += tar_member(fmt::format("{:04}.txt", i), std::string(dice() % 700, 'c'));
  }
  return tar + tar_end();
}

// A cut gives the same as the plain tar cut where the bytes end that it unpacks to.
void expect_as_plain(const std::string& packed, const std::string& unpacked, std::size_t piece) {
  const Contents plain = contents_of(unpacked), cut = contents_of(packed, piece);
  ASSERT_TRUE(cut.error);
  EXPECT_EQ(cut.samples.size(), plain.samples.size());
  EXPECT_TRUE(cut.samples == plain.samples);
  EXPECT_NE(cut.error->message.find("truncated gzip input"), std::string::npos) << cut.error->message;
  EXPECT_EQ(cut.error->message.find("x.tar.gz: "), 0u) << cut.error->message;
  EXPECT_EQ(cut.error->input_failure, "") << "the bytes are at fault, not who gave them";
}

TEST(TarGzip, EveryCompleteMemberBeforeACut) {
  std::mt19937 dice(11);
  std::size_t most = 0;
  for (const int samples : {1, 3, 40, 200}) {
    const std::string tar = random_tar(samples, dice());
    for (const int level : {0, 1, 6, 9}) {
      const std::string packed = gzip(tar, level);
      for (int cut = 0; cut < 25; ++cut) {
        const std::size_t length = 20 + dice() % (packed.size() - 20);
        SCOPED_TRACE(fmt::format("{} samples, level {}, {} of {} bytes", samples, level, length, packed.size()));
        const std::string front = packed.substr(0, length), unpacked = gunzip_front(front);
        expect_as_plain(front, unpacked, cut % 5 == 0 ? 1 + dice() % 100 : std::string::npos);
        most = std::max(most, contents_of(front).samples.size());
      }
    }
  }
  EXPECT_GT(most, 100u);
}

TEST(TarGzip, EveryCompleteMemberBeforeACutOfAFile) {
  const ScratchDirectory scratch;
  const std::string packed = gzip(random_tar(40, 12));
  for (const std::size_t length : {std::size_t{20'000}, packed.size() / 2, packed.size() - 500}) {
    const std::string front = packed.substr(0, length);
    const Contents plain = contents_of(gunzip_front(front));
    const std::string path = scratch.write("x.tar.gz", front);
    const Contents cut = contents_of(TarReader(path));
    EXPECT_TRUE(cut.samples == plain.samples);
    EXPECT_GE(cut.samples.size(), 5u);
    EXPECT_TRUE(cut.error && cut.error->message.find("truncated gzip input") != std::string::npos);
    EXPECT_EQ(count_samples(path), cut.samples.size()) << "headers alone must give the same count";
  }
}

// Lengths that put the end at different places of the blocks that are read.
TEST(TarGzip, ACutBehindTheEndMarkLosesNothing) {
  for (const int samples : {1, 30, 31, 40}) {
    const std::string tar = random_tar(samples, 13), packed = gzip(tar);
    for (std::size_t missing = 1; missing <= 8; ++missing) {
      const Contents cut = contents_of(packed.substr(0, packed.size() - missing));
      EXPECT_TRUE(cut.samples == contents_of(tar).samples);
      EXPECT_TRUE(cut.error);
      EXPECT_EQ(cut.error ? cut.error->message : "", "x.tar.gz: truncated gzip input, after the end of the archive");
    }
  }
}

TEST(TarGzip, MembersOneBehindTheOther) {
  const std::string tar = random_tar(60, 14);
  const Contents plain = contents_of(tar);
  std::vector<std::string> members;
  for (std::size_t at = 0; at < tar.size(); at += 7001) members.push_back(gzip(tar.substr(at, 7001)) + gzip(""));
  std::string packed;
  for (const std::string& member : members) packed += member;
  for (const std::size_t piece : {std::size_t{1}, std::size_t{1000}, std::string::npos}) {
    const Contents whole = contents_of(packed, piece);
    EXPECT_TRUE(whole.samples == plain.samples);
    EXPECT_FALSE(whole.error);
  }
  EXPECT_FALSE(contents_of(packed + std::string(5000, '\0')).error);
  EXPECT_FALSE(contents_of(packed + "rubbish").error);

  // Cut between two of them, where gzip lacks nothing, and within one.
  std::size_t length = 0;
  for (std::size_t i = 0; i < 5; ++i) length += members[i].size();
  const Contents between = contents_of(packed.substr(0, length)), before = contents_of(tar.substr(0, 5 * 7001));
  EXPECT_TRUE(between.samples == before.samples);
  EXPECT_TRUE(between.error);
  expect_as_plain(packed.substr(0, length + members[5].size() / 2),
                  tar.substr(0, 5 * 7001) + gunzip_front(members[5].substr(0, members[5].size() / 2)), 1000);
}

TEST(TarGzip, AWholeTarWithoutAnEndMarkIsBroken) {
  std::string tar = random_tar(40, 15);
  tar.resize(tar.size() - 1024);
  const Contents contents = contents_of(gzip(tar));
  EXPECT_EQ(contents.samples.size(), 40u);
  EXPECT_TRUE(contents.error && contents.error->message.find("no end mark") != std::string::npos);
}

TEST(TarGzip, NothingInIt) {
  const Contents nothing = contents_of(gzip(""));
  EXPECT_TRUE(nothing.samples.empty());
  EXPECT_TRUE(nothing.error) << "no tar at all";
  for (const std::size_t zeros : {512, 1024, 10240}) {
    const Contents empty = contents_of(gzip(std::string(zeros, '\0')), 1);
    EXPECT_TRUE(empty.samples.empty());
    EXPECT_FALSE(empty.error);
  }
}

// Nor does libarchive compare them.
TEST(TarGzip, AWrongChecksumBehindAWholeTarIsNoError) {
  std::string packed = gzip(random_tar(40, 16));
  packed[packed.size() - 8] ^= 1;
  packed[packed.size() - 1] ^= 1;
  const Contents contents = contents_of(packed);
  EXPECT_EQ(contents.samples.size(), 40u);
  EXPECT_FALSE(contents.error);
}

TEST(TarGzip, AllBeforeTheDamage) {
  const std::string tar = random_tar(40, 17);
  const std::size_t half = tar.size() / 2;
  std::string damaged = gzip(tar.substr(half));
  damaged[10] |= 6;  // a kind of block that does not exist
  const Contents contents = contents_of(gzip(tar.substr(0, half)) + damaged);
  EXPECT_TRUE(contents.samples == contents_of(tar.substr(0, half)).samples);
  EXPECT_GT(contents.samples.size(), 10u);
  EXPECT_TRUE(contents.error && contents.error->message.find("gzip decompression failed") != std::string::npos);
}

TEST(TarGzip, PackedTwice) {
  const std::string tar = random_tar(40, 18);
  const Contents contents = contents_of(gzip(gzip(tar)));
  EXPECT_TRUE(contents.samples == contents_of(tar).samples);
  EXPECT_FALSE(contents.error);
}

TEST(TarGzip, APlainTarMayBeginLikeIt) {
  const std::string tar = tar_member("\x1f\x8bx.jpg", "a") + tar_member("1.jpg", "b") + tar_end();
  EXPECT_EQ(contents_of(tar, 1).samples.size(), contents_of(tar).samples.size());
  EXPECT_FALSE(contents_of(tar, 1).error);
}

TEST(TarGzip, StorageThatFailsIsNoCut) {
  const std::string packed = gzip(random_tar(100, 19));
  for (const std::size_t length : {std::size_t{0}, std::size_t{2}, packed.size() / 2, packed.size() - 4}) {
    EXPECT_THROW(contents_of(TarReader(std::make_unique<Pieces>(packed.substr(0, length), 1000,
                                                                [] { throw StorageError("x", "EIO", "x: EIO"); }),
                                       "x.tar.gz")),
                 StorageError)
        << length;
  }
}

// A command's failure is told in its words, behind all that it wrote.
TEST(TarGzip, WhoGaveTheBytesMayFail) {
  const std::string tar = random_tar(40, 20), packed = gzip(tar);
  const auto fail = [] { throw Error(Exit::io, "'it' ended with status 3"); };
  const std::string front = packed.substr(0, 20'000);
  const Contents cut = contents_of(TarReader(std::make_unique<Pieces>(front, 1000, fail), "x.tar.gz"));
  EXPECT_TRUE(cut.samples == contents_of(gunzip_front(front)).samples);
  EXPECT_EQ(cut.error.value_or(BrokenArchive{}).input_failure, "'it' ended with status 3");
  const Contents whole = contents_of(TarReader(std::make_unique<Pieces>(packed, 1000, fail), "x.tar.gz"));
  EXPECT_EQ(whole.samples.size(), 40u);
  EXPECT_EQ(whole.error.value_or(BrokenArchive{}).message, "'it' ended with status 3, after the end of the archive");
}

TEST(TarGzip, WhatIsBehindAFileIsTold) {
  const ScratchDirectory scratch;
  const std::string packed = gzip(random_tar(40, 21)), more = random_tar(1000, 22);
  const auto unread_bytes = [&](const std::string& bytes) {
    TarReader reader(scratch.write("x.tar.gz", bytes).string());
    EXPECT_EQ(reader.skip(100), 40u);
    EXPECT_FALSE(reader.error());
    return reader.unread_bytes();
  };
  EXPECT_EQ(unread_bytes(packed), 0u);
  EXPECT_EQ(unread_bytes(packed + more), more.size());
  EXPECT_NEAR(static_cast<double>(unread_bytes(packed + gzip(more))), static_cast<double>(gzip(more).size()), 131072);
}

}  // namespace
}  // namespace millrace::test
