#include <unistd.h>

#include <array>

#include "millrace/io/tar.h"
#include "support.h"
#include "tar_bytes.h"

namespace millrace::test {
namespace {

std::vector<TarSample> all_samples(TarReader& reader) {
  std::vector<TarSample> samples;
  while (auto sample = reader.next()) samples.push_back(std::move(*sample));
  return samples;
}

TEST(Tar, ReadsWhatWebdatasetReads) {
  const auto archives = golden_json("tar.json");
  for (const auto& [name, expected] : archives.items()) {
    SCOPED_TRACE(name);
    TarReader reader(golden("tar/" + name).string());
    const auto samples = all_samples(reader);
    EXPECT_FALSE(reader.error()) << reader.error()->message;
    ASSERT_EQ(samples.size(), expected.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      EXPECT_EQ(samples[i].key, expected[i][0].get<std::string>());
      ASSERT_EQ(samples[i].fields.size(), expected[i][1].size()) << samples[i].key;
      for (std::size_t f = 0; f < samples[i].fields.size(); ++f) {
        EXPECT_EQ(samples[i].fields[f].first, expected[i][1][f][0].get<std::string>());
        EXPECT_EQ(samples[i].fields[f].second, from_latin1(expected[i][1][f][1].get<std::string>()));
      }
    }
  }
}

TEST(Tar, CountsRowsFromHeadersAlone) {
  const auto archives = golden_json("tar.json");
  for (const auto& [name, expected] : archives.items()) {
    EXPECT_EQ(count_samples(golden("tar/" + name).string()), expected.size()) << name;
  }
}

TEST(Tar, SkipsAndGoesOnReading) {
  for (const char* name : {"tar/plain.tar", "tar/plain.tar.xz"}) {
    TarReader reader(golden(name).string());
    EXPECT_EQ(reader.skip(2), 2u);
    EXPECT_EQ(reader.next()->key, "00002");
    EXPECT_EQ(reader.skip(1), 1u);
    EXPECT_EQ(reader.next()->fields.at(2).second, "caption 4");
    EXPECT_EQ(reader.skip(1), 0u);
    EXPECT_FALSE(reader.next());
    EXPECT_FALSE(reader.error());
  }
}

TEST(Tar, TellsTheKeysOfWhatItPassesOver) {
  for (const char* name : {"tar/plain.tar", "tar/plain.tar.xz"}) {
    TarReader reader(golden(name).string());
    EXPECT_EQ(reader.skip_one().value().key, "00000");
    EXPECT_EQ(reader.next()->key, "00001");
    EXPECT_EQ(reader.skip(2), 2u);
    EXPECT_EQ(reader.skip_one().value().key, "00004");
    EXPECT_FALSE(reader.skip_one());
  }
}

// Before each file one of its attributes; its neighbours are of one sample all the same.
TEST(Tar, FilesOfMacOSBelongToNoSample) {
  const ScratchDirectory scratch;
  const auto path =
      scratch.write("mac.tar", tar_member("._0.jpg", "a") + tar_member("0.jpg", "j") + tar_member("./d/._1.jpg", "a") +
                                   tar_member("./d/1.jpg", "j") + tar_member("./d/._1.txt", "a") +
                                   tar_member("./d/1.txt", "t") + tar_end());
  TarReader reader(path.string());
  const auto samples = all_samples(reader);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].key, "0");
  EXPECT_EQ(samples[1].key, "d/1");
  EXPECT_EQ(samples[1].fields, (decltype(TarSample::fields){{"jpg", "j"}, {"txt", "t"}}));
  EXPECT_EQ(count_samples(path.string()), 2u);
}

TEST(Tar, ReadsOnlyTheFieldsAskedFor) {
  for (const char* name : {"tar/plain.tar", "tar/plain.tar.gz"}) {
    TarReader reader(golden(name).string(), {.fields = {"txt"}});
    const auto samples = all_samples(reader);
    ASSERT_EQ(samples.size(), 5u);
    EXPECT_EQ(samples[3].fields, (decltype(TarSample::fields){{"jpg", ""}, {"json", ""}, {"txt", "caption 3"}}));
  }
}

TEST(Tar, AMemberBeyondTheLimitComesWithoutBytes) {
  TarReader reader(golden("tar/plain.tar").string(), {.fields = {}, .max_sample_bytes = 100});
  const auto sample = reader.next();
  EXPECT_TRUE(sample->oversized);
  EXPECT_EQ(sample->fields.at(0).second, "");
  EXPECT_EQ(sample->fields.at(2).second, "caption 0");
  TarReader captions(golden("tar/plain.tar").string(), {.fields = {"txt"}, .max_sample_bytes = 100});
  EXPECT_FALSE(captions.next()->oversized) << "what nobody wants does not count";
}

TEST(Tar, TheFieldsOfASampleAreBounded) {
  const ScratchDirectory scratch;
  std::string bytes;
  for (int i = 0; i < 1500; ++i) bytes += tar_member("a.f" + std::to_string(i), "");
  bytes += tar_member("b.txt", "b") + tar_end();
  const std::string path = scratch.write("many.tar", bytes);
  TarReader reader(path);
  const auto samples = all_samples(reader);
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].fields.size(), 1000u);
  EXPECT_TRUE(samples[0].oversized);
  EXPECT_FALSE(samples[1].oversized);
  EXPECT_EQ(count_samples(path), 2u);
}

// As a shell makes one of <(command): it has no length that its end could be held against.
TEST(Tar, APipeMayStandInThePlaceOfAFile) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const std::string tar = tar_member("0.jpg", "j") + tar_member("1.jpg", "j") + tar_end();
  ASSERT_EQ(::write(ends[1], tar.data(), tar.size()), static_cast<ssize_t>(tar.size()));
  ::close(ends[1]);
  TarReader reader(fmt::format("/dev/fd/{}", ends[0]));
  EXPECT_EQ(reader.skip(1), 1u);
  EXPECT_EQ(reader.next().value().key, "1");
  EXPECT_FALSE(reader.next());
  EXPECT_FALSE(reader.error());
  ::close(ends[0]);
}

TEST(Tar, OneSampleIsReadFromItsPlace) {
  const ScratchDirectory scratch;
  const std::string bytes = tar_member("0.jpg", std::string(700, 'a')) + tar_member("0.txt", "zero") +
                            tar_member("1.jpg", std::string(600, 'b')) + tar_member("1.txt", "one");
  const auto path = scratch.write("a.tar", bytes + tar_end());
  TarReader reader(path.string());
  const auto samples = all_samples(reader);
  ASSERT_EQ(samples.size(), 2u);
  for (const auto& sample : samples) {
    const auto alone = read_tar_sample(InputFile(path.string()), sample.begin, sample.end, {});
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->key, sample.key);
    EXPECT_EQ(alone->fields, sample.fields);
  }
  const auto read_last = [&](std::size_t length) {
    const auto cut = scratch.write("cut.tar", bytes.substr(0, length));
    return read_tar_sample(InputFile(cut.string()), samples[1].begin, samples[1].end, {});
  };
  EXPECT_TRUE(read_last(bytes.size() - 500)) << "cut within the zeros behind its last member";
  EXPECT_FALSE(read_last(bytes.size() - 512)) << "which lost that member";
  EXPECT_FALSE(read_last(100));
}

TEST(Tar, AMissingFileIsAnError) {
  const Error error = error_of([] { TarReader("/nowhere/x.tar"); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("/nowhere/x.tar"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
