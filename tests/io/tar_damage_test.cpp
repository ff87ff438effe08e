#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "millrace/io/net/stream.h"
#include "millrace/io/tar.h"
#include "support.h"
#include "tar_bytes.h"

// Archives that are cut short, damaged or hostile: the samples before the damage, then one error.
namespace millrace::test {
namespace {

struct ReadSamples {
  std::vector<std::string> keys;
  bool broken = false;
};

ReadSamples read(const fs::path& path) {
  TarReader reader(path.string());
  ReadSamples outcome;
  while (const auto sample = reader.next()) outcome.keys.push_back(sample->key);
  outcome.broken = reader.error().has_value();
  if (outcome.broken) {
    EXPECT_NE(reader.error()->message.find(path.filename().string()), std::string::npos);
  }
  EXPECT_FALSE(reader.next());
  EXPECT_EQ(count_samples(path.string()), outcome.keys.size()) << "headers alone must give the same count";
  return outcome;
}

std::vector<std::string> keys_up_to(int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(fmt::format("{:03d}", i));
  return keys;
}

// Three samples of jpg (700 bytes) and txt (10 bytes): 1536 + 1024 bytes each.
std::string three_samples() {
  std::string tar;
  for (int i = 0; i < 3; ++i) {
    tar += tar_member(fmt::format("{:03d}.jpg", i), std::string(700, static_cast<char>('a' + i)));
    tar += tar_member(fmt::format("{:03d}.txt", i), "0123456789");
  }
  return tar + tar_end();
}
constexpr std::size_t sample_bytes = 2560, jpg_bytes = 1536;

TEST(TarDamage, EveryLengthOfACutArchive) {
  const ScratchDirectory scratch;
  const std::string whole = three_samples();
  for (std::size_t length = 1; length <= 3 * sample_bytes; length += 37) {
    SCOPED_TRACE(length);
    const ReadSamples outcome = read(scratch.write("cut.tar", whole.substr(0, length)));
    // A sample is there once the data of its last member is; the first has no sample before to tell how much belongs
    // to it, so it waits for the key that follows.
    const std::size_t data_end = jpg_bytes + 512 + 10;
    std::size_t complete = length / sample_bytes + (length % sample_bytes >= data_end ? 1 : 0);
    if (complete == 1 && length < sample_bytes + 512) complete = 0;
    EXPECT_EQ(outcome.keys, keys_up_to(static_cast<int>(complete)));
    EXPECT_TRUE(outcome.broken);
  }
  EXPECT_FALSE(read(scratch.write("whole.tar", whole)).broken);
  EXPECT_FALSE(read(scratch.write("one_zero_block.tar", whole.substr(0, whole.size() - 512))).broken);
}

TEST(TarDamage, ACutCompressedArchive) {
  const ScratchDirectory scratch;
  const std::string raw = scratch.write("whole.tar", three_samples()).string();
  for (const std::size_t length : {2000, 2600, 3500, 4700, 5600}) {
    const std::string cut = (scratch / fmt::format("cut{}.tar", length)).string();
    ASSERT_EQ(std::system(fmt::format("head -c {} {} > {} && gzip -k {}", length, raw, cut, cut).c_str()), 0);
    const ReadSamples plain = read(cut), packed = read(cut + ".gz");
    EXPECT_EQ(plain.keys, packed.keys) << length;
    EXPECT_TRUE(packed.broken);
  }
  const std::string gz = read_file(golden("tar/plain.tar.gz"));
  const ReadSamples outcome = read(scratch.write("cut.tar.gz", gz.substr(0, gz.size() * 3 / 4)));
  EXPECT_TRUE(outcome.broken);
  EXPECT_LT(outcome.keys.size(), 5u);
}

TEST(TarDamage, ACutWithinAMemberLosesTheHalfSample) {
  const ScratchDirectory scratch;
  const std::string whole = three_samples();
  for (const std::size_t length :
       {sample_bytes + 512 + 350, sample_bytes + jpg_bytes, sample_bytes + jpg_bytes + 512 + 5}) {
    const ReadSamples outcome = read(scratch.write("cut.tar", whole.substr(0, length)));
    EXPECT_EQ(outcome.keys, keys_up_to(1)) << length;
    EXPECT_TRUE(outcome.broken);
  }
  EXPECT_EQ(read(scratch.write("cut.tar", whole.substr(0, 2 * sample_bytes))).keys, keys_up_to(2))
      << "cut between two samples";
}

TEST(TarDamage, ADamagedHeaderEndsTheArchive) {
  const ScratchDirectory scratch;
  std::string tar = three_samples();
  tar[2 * sample_bytes + 3] ^= 0x20;
  const ReadSamples outcome = read(scratch.write("flip.tar", tar));
  EXPECT_EQ(outcome.keys, keys_up_to(2));
  EXPECT_TRUE(outcome.broken);
}

TEST(TarDamage, WhatIsNoTarAtAll) {
  const ScratchDirectory scratch;
  for (const std::string& content :
       {std::string(), std::string("<html>not found</html>"), std::string(5000, 'x'), std::string("\x1f\x8b\x08", 3)}) {
    const ReadSamples outcome = read(scratch.write("no.tar", content));
    EXPECT_TRUE(outcome.broken);
    EXPECT_TRUE(outcome.keys.empty());
  }
}

TEST(TarDamage, ARepeatedFieldStartsANewSample) {
  const ScratchDirectory scratch;
  const fs::path path =
      scratch.write("repeat.tar", tar_member("1.jpg", "a") + tar_member("1.txt", "b") + tar_member("1.JPG", "c") +
                                      tar_member("1.json", "d") + tar_end());
  TarReader reader(path.string());
  EXPECT_EQ(reader.next()->fields, (decltype(TarSample::fields){{"jpg", "a"}, {"txt", "b"}}));
  const auto second = reader.next();
  EXPECT_EQ(second->key, "1");
  EXPECT_EQ(second->fields, (decltype(TarSample::fields){{"jpg", "c"}, {"json", "d"}}));
  EXPECT_FALSE(reader.next());
}

class Bytes final : public ByteStream {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  std::size_t read(std::span<std::byte> buffer) override {
    const auto size = std::min(buffer.size(), bytes_.size() - at_);
    std::memcpy(buffer.data(), bytes_.data() + at_, size);
    at_ += size;
    return size;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

// As a split's samples are read by an index.
TEST(TarDamage, OneSampleOfALargeArchiveHasNothingBehindIt) {
  const ScratchDirectory scratch;
  const auto path = scratch.write("large.tar", three_samples() + tar_member("003.jpg", std::string(4 << 20, 'x')));
  TarReader reader(std::make_unique<Bytes>(three_samples()), path.string());
  EXPECT_EQ(reader.skip(10), 3u);
  EXPECT_EQ(reader.unread_bytes(), 0u);
}

TEST(TarDamage, MembersAfterTheEndMarkDoNotCount) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read(scratch.write("two.tar", three_samples() + three_samples())).keys, keys_up_to(3));
  const auto unread_bytes = [&](const std::string& bytes) {
    TarReader reader(scratch.write("a.tar", bytes).string());
    EXPECT_EQ(reader.skip(10), 3u);
    return reader.unread_bytes();
  };
  const std::string large = tar_member("003.jpg", std::string(2 << 20, 'x')) + tar_end();
  EXPECT_EQ(unread_bytes(three_samples() + std::string(10240, '\0') + large) / 1000, (10240 + large.size()) / 1000);
  EXPECT_EQ(unread_bytes(three_samples() + std::string(2 << 20, '\0')), 0u) << "nothing but zeros";
  EXPECT_EQ(unread_bytes(three_samples()), 0u);
}

TEST(TarDamage, FewMembersAfterTheEndMarkAreToldToo) {
  const ScratchDirectory scratch;
  TarReader reader(scratch.write("two.tar", three_samples() + three_samples()).string());
  EXPECT_EQ(reader.skip(10), 3u);
  EXPECT_GT(reader.unread_bytes(), 1000u);
}

// Another archive may have its name by then.
TEST(TarDamage, WhatIsBehindTheEndIsLookedForInTheSameFile) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.tar", other = scratch.write("b.tar", three_samples() + three_samples());
  const auto last_sample_once = [&](auto happens) {
    TarReader reader(scratch.write("a.tar", three_samples()).string());
    EXPECT_EQ(reader.skip(2), 2u);
    happens();
    const auto sample = reader.next();
    EXPECT_EQ(reader.unread_bytes(), 0u);
    return sample ? sample->key : "none";
  };
  EXPECT_EQ(last_sample_once([&] { fs::rename(other, path); }), "002");
  EXPECT_EQ(last_sample_once([&] { fs::remove(path); }), "002");
}

TEST(TarDamage, ZerosAloneAreNoArchive) {
  const ScratchDirectory scratch;
  TarReader empty(scratch.write("empty.tar", std::string(10240, '\0')).string());
  EXPECT_EQ(empty.skip(10), 0u);
  EXPECT_FALSE(empty.error());
  TarReader zeros(scratch.write("zeros.tar", std::string(30720, '\0')).string());
  EXPECT_EQ(zeros.skip(10), 0u);
  ASSERT_TRUE(zeros.error());
  EXPECT_NE(zeros.error()->message.find("no member before its end mark"), std::string::npos) << zeros.error()->message;
}

TEST(TarDamage, ClaimsOfHugeSizesAllocateNothing) {
  const ScratchDirectory scratch;
  const std::string sample = tar_member("000.jpg", "a") + tar_member("000.txt", "b") + tar_member("001.jpg", "a");
  EXPECT_EQ(read(scratch.write("huge.tar", sample + tar_header("001.txt", 077777777777) + "abc")).keys, keys_up_to(1));
  // A size of 2^63 - 1 in base 256.
  std::string header = tar_header("001.txt", 0);
  header.replace(124, 12, std::string("\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", 12));
  header.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  EXPECT_EQ(read(scratch.write("base256.tar", sample + header + "abc")).keys, keys_up_to(1));
  // A long-name record of 8 GB.
  EXPECT_EQ(read(scratch.write("longname.tar", sample + tar_header("././@LongLink", 077777777777, 'L') + "abc")).keys,
            keys_up_to(1));
}

TEST(TarDamage, NamesWithLettersSurviveTheCLocale) {
  TarReader reader(golden("tar/odd_names_pax.tar").string());
  bool found = false;
  while (const auto sample = reader.next()) found |= sample->key == "ünï/日本";
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace millrace::test
