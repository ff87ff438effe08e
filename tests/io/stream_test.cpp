#include "millrace/io/stream.h"

#include <array>

#include "millrace/io/tar.h"
#include "support.h"

namespace millrace::test {
namespace {

std::string read_all(ByteStream& stream) {
  std::string all;
  std::array<std::byte, 1000> buffer;
  while (const std::size_t got = stream.read(buffer)) all += as_text({buffer.data(), got});
  return all;
}

TEST(Stream, ReadsACommandsOutput) {
  EXPECT_EQ(read_all(*open_stream("pipe:printf abc; printf def")), "abcdef");
}

TEST(Stream, AFailingCommandIsAnErrorThatNamesIt) {
  const auto stream = open_stream("pipe:printf abc; exit 3");
  const Error error = error_of([&] { read_all(*stream); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("status 3"), std::string::npos) << error.what();
}

TEST(Stream, ACommandThatOutlivesItsReaderIsStopped) {
  const auto stream = open_stream("pipe:yes");
  std::array<std::byte, 10> buffer;
  EXPECT_EQ(stream->read(buffer), 10u);
}

TEST(Stream, AnUnknownSchemeIsAnError) {
  EXPECT_EQ(error_of([] { open_stream("s3://bucket/x.tar"); }).exit(), Exit::io);
}

TEST(Stream, AServerThatIsNotThereIsAnError) {
  const auto stream = open_stream("http://127.0.0.1:9/x.tar");
  EXPECT_EQ(error_of([&] { read_all(*stream); }).exit(), Exit::io);
}

TEST(Stream, ATarMayComeThroughAPipe) {
  TarReader reader("pipe:cat " + golden("tar/plain.tar.gz").string());
  EXPECT_EQ(reader.skip(100), 5u);
  EXPECT_FALSE(reader.error());
}

TEST(Stream, AFailingPipeBreaksTheArchive) {
  TarReader reader("pipe:head -c 5000 " + golden("tar/plain.tar").string() + "; exit 1");
  EXPECT_EQ(reader.skip(100), 1u);
  ASSERT_TRUE(reader.error());
}

}  // namespace
}  // namespace millrace::test
