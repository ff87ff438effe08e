// Commands as sources: their status, their end, and the signals that are not meant for them. Real shells throughout.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <sstream>

#include "io/support.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/tar.h"
#include "millrace/io/tar_writer.h"

namespace millrace::test {
namespace {

using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Impatient, so that tests do not wait; and for commands that do something between two lines, or behind their last.
const TransferOptions quick{.command_silence = seconds(1), .command_end = seconds(1)},
    unhurried{.command_silence = seconds(10), .command_end = seconds(10)};

std::string plain_tar() {
  return golden("tar/plain.tar").string();
}

// One line of a command's output, the rest of which stays where it is.
std::string read_line(ByteStream& stream) {
  std::string line;
  std::byte next{};
  while (stream.read({&next, 1}) == 1 && next != std::byte{'\n'}) line += static_cast<char>(next);
  return line;
}

std::string message_of(const std::function<void()>& call) {
  const Error error = error_of(call);
  EXPECT_EQ(error.exit(), Exit::io);
  return error.what();
}

void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// Neither running nor stopped; nobody may have reaped an orphan yet.
bool is_gone(pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(status, line);
  return line.empty() || line.substr(line.rfind(')') + 2, 1) == "Z";
}

bool goes_soon(pid_t process) {
  const auto deadline = Clock::now() + seconds(100);
  while (!is_gone(process) && Clock::now() < deadline) ::usleep(1000);
  return is_gone(process);
}

struct Outcome {
  std::uint64_t rows = 0;
  std::string error;
};

Outcome read_tar(const std::string& command, const TransferOptions& options = quick) {
  TarReader reader(open_stream("pipe:" + command, options), "pipe:" + command);
  Outcome outcome;
  while (reader.next()) ++outcome.rows;
  if (reader.error()) outcome.error = reader.error()->message;
  return outcome;
}

TEST(Command, GivesItsOutput) {
  EXPECT_EQ(read_all(*open_stream("pipe:printf abc; printf def", quick)), "abcdef");
  EXPECT_EQ(read_all(*open_stream("pipe:cat", quick)), "");  // standard input is empty
}

TEST(Command, AFailureIsAnErrorThatNamesIt) {
  const auto failed = open_stream("pipe:printf abc; exit 3", quick);
  expect_holds(message_of([&] { read_all(*failed); }), "'printf abc; exit 3' ended with status 3");
  const auto before_a_byte = open_stream("pipe:exit 4", quick);
  expect_holds(message_of([&] { read_all(*before_a_byte); }), "status 4");
  const auto killed = open_stream("pipe:printf abc; kill -9 $$", quick);
  expect_holds(message_of([&] { read_all(*killed); }), "signal 9");
  const auto unknown = open_stream("pipe:/no/such/program", quick);
  expect_holds(message_of([&] { read_all(*unknown); }), "status 127");
  // A pipe within the command that broke: its reader is not this process.
  const auto broken = open_stream("pipe:printf abc; kill -PIPE $$", quick);
  expect_holds(message_of([&] { read_all(*broken); }), "signal 13");
}

TEST(Command, SilenceHasALimit) {
  const auto stream = open_stream("pipe:printf abc; sleep 1000", quick);
  expect_holds(message_of([&] { read_all(*stream); }), "wrote nothing for 1 s");
}

TEST(Command, OneThatDoesNotEndIsEnded) {
  const auto stream = open_stream("pipe:echo $$; exec >&-; sleep 1000", quick);
  const pid_t shell = std::stoi(read_line(*stream));
  expect_holds(message_of([&] { read_all(*stream); }), "still ran 1 s after all was read of it");
  EXPECT_TRUE(goes_soon(shell));
}

TEST(Command, WhoClosesEarlyEndsItAndItsChildren) {
  auto stream = open_stream("pipe:trap '' TERM; echo $$; sleep 1000 & echo $!; wait", quick);
  const pid_t shell = std::stoi(read_line(*stream)), child = std::stoi(read_line(*stream));
  EXPECT_FALSE(is_gone(shell) || is_gone(child));
  stream.reset();
  EXPECT_TRUE(goes_soon(shell) && goes_soon(child));
}

TEST(Command, MayTidyUpWhenItIsEnded) {
  const ScratchDirectory scratch;
  auto stream = open_stream(
      fmt::format("pipe:cd {}; trap 'echo > tidy; exit' TERM; echo there; sleep 1000 & wait", scratch.path().string()),
      quick);
  EXPECT_EQ(read_line(*stream), "there");
  stream.reset();
  EXPECT_TRUE(fs::exists(scratch / "tidy"));
}

// A process group of its own, as mpirun gives to a rank, that gets a signal which the rank itself survives.
TEST(Command, SignalsOfTheProcessGroupDoNotReachIt) {
  const pid_t rank = ::fork();
  ASSERT_GE(rank, 0);
  if (rank == 0) {
    ::setpgid(0, 0);
    for (const int number : {SIGUSR1, SIGTERM, SIGINT}) ::signal(number, [](int) {});
    bool lives = false;
    try {
      const auto stream = open_stream("pipe:echo ready; sleep 0.3; echo alive", unhurried);
      lives = read_line(*stream) == "ready";
      for (const int number : {SIGUSR1, SIGTERM, SIGINT}) ::kill(0, number);
      lives &= read_all(*stream) == "alive\n";
    } catch (const Error&) {
      lives = false;
    }
    ::_exit(lives ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(rank, &status, 0), rank);
  EXPECT_EQ(status, 0);
}

// Ignored signals are inherited; a command must not notice what its rank does about them.
TEST(Command, SignalsAreAsAShellExpectsThem) {
  const auto before = ::signal(SIGPIPE, SIG_IGN);
  const auto stream = open_stream("pipe:sed -n 's/^SigIgn:\t//p' /proc/self/status", quick);
  const std::uint64_t ignored = std::stoull(read_line(*stream), nullptr, 16);
  ::signal(SIGPIPE, before);
  EXPECT_EQ(ignored & 1u << (SIGPIPE - 1), 0u);
}

TEST(Command, ATarMayComeThroughIt) {
  for (const char* name : {"tar/plain.tar", "tar/plain.tar.gz"}) {
    const Outcome whole = read_tar("cat " + golden(name).string());
    EXPECT_EQ(whole.rows, 5u) << name;
    EXPECT_EQ(whole.error, "") << name;
  }
}

// The rows stay, all of them, though the archive counts as broken.
TEST(Command, ItsStatusCountsBehindAWholeTar) {
  for (const char* name : {"tar/plain.tar", "tar/plain.tar.gz"}) {
    const Outcome failed = read_tar("cat " + golden(name).string() + "; exit 3");
    EXPECT_EQ(failed.rows, 5u) << name;
    expect_holds(failed.error, "ended with status 3, after the end of the archive");
  }
  expect_holds(read_tar("cat " + plain_tar() + "; kill -9 $$").error, "signal 9");
  expect_holds(read_tar("cat " + plain_tar() + "; sleep 0.2; exit 5", unhurried).error, "status 5");
}

// The end mark says that the last sample is whole, though it lacks a field that the one before it has.
TEST(Command, TheLastRowStays) {
  const ScratchDirectory scratch;
  const std::string path = (scratch / "x.tar").string();
  TarWriter writer(path);
  writer.write({.key = "a", .fields = {{"jpg", "1"}, {"txt", "2"}}});
  writer.write({.key = "b", .fields = {{"jpg", "3"}}});
  writer.commit();
  const Outcome failed = read_tar("cat " + path + "; exit 3");
  EXPECT_EQ(failed.rows, 2u);
  expect_holds(failed.error, "status 3");
}

TEST(Command, ItsStatusCountsWhereTheTarBreaks) {
  const Outcome cut = read_tar("head -c 5000 " + plain_tar() + "; exit 3");
  EXPECT_EQ(cut.rows, 1u);
  expect_holds(cut.error, "status 3");
  const Outcome nothing = read_tar("exit 3");
  EXPECT_EQ(nothing.rows, 0u);
  expect_holds(nothing.error, "status 3");
}

// tar's padding may be long, and a writer that met a closed pipe would fail.
TEST(Command, PaddingIsRead) {
  const Outcome padded = read_tar("set -e; cat " + plain_tar() + "; head -c 1000000 /dev/zero");
  EXPECT_EQ(padded.rows, 5u);
  EXPECT_EQ(padded.error, "");
  expect_holds(read_tar("cat " + plain_tar() + "; head -c 1000000 /dev/zero; exit 3").error, "status 3");
}

TEST(Command, WhoWritesOnForEverIsCutOff) {
  const auto begun = Clock::now();
  const Outcome endless = read_tar("cat " + plain_tar() + "; yes", {.command_end = seconds(300)});
  EXPECT_EQ(endless.rows, 5u);
  EXPECT_EQ(endless.error, "");
  EXPECT_LT(Clock::now() - begun, seconds(150));
}

TEST(Command, WhoNeverEndsBehindATarIsAnError) {
  const Outcome endless = read_tar("cat " + plain_tar() + "; sleep 1000");
  EXPECT_EQ(endless.rows, 5u);
  expect_holds(endless.error, "still ran 1 s");
}

// What the shell leaves behind may hold the pipe open.
TEST(Command, TheShellsEndIsEnough) {
  const TransferOptions patient{.command_end = seconds(300)};
  const auto begun = Clock::now();
  const Outcome left = read_tar("cat " + plain_tar() + "; sleep 1000 & exit 0", patient);
  EXPECT_EQ(left.rows, 5u);
  EXPECT_EQ(left.error, "");
  expect_holds(read_tar("cat " + plain_tar() + "; sleep 1000 & exit 3", patient).error, "status 3");
  EXPECT_LT(Clock::now() - begun, seconds(150));
}

TEST(Command, AReaderThatStopsInTheMiddleIsNoError) {
  TarReader reader(open_stream("pipe:cat " + plain_tar() + "; exit 3", quick), "pipe");
  EXPECT_EQ(reader.skip(2), 2u);
  EXPECT_FALSE(reader.error());
}

}  // namespace
}  // namespace millrace::test
