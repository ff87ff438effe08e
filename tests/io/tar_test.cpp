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
    EXPECT_EQ(count_rows(golden("tar/" + name).string()), expected.size()) << name;
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
    EXPECT_EQ(reader.skip_one(), "00000");
    EXPECT_EQ(reader.next()->key, "00001");
    EXPECT_EQ(reader.skip(2), 2u);
    EXPECT_EQ(reader.skip_one(), "00004");
    EXPECT_EQ(reader.skip_one(), std::nullopt);
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
  EXPECT_EQ(count_rows(path.string()), 2u);
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
  EXPECT_EQ(count_rows(path), 2u);
}

TEST(Tar, AMissingFileIsAnError) {
  const Error error = error_of([] { TarReader("/nowhere/x.tar"); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("/nowhere/x.tar"), std::string::npos);
}

}  // namespace
}  // namespace millrace::test
