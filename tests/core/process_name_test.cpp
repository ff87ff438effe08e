#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "millrace/core/process_name.h"

namespace millrace {
namespace {

// A child that says its name and waits until `go_on` is closed.
struct Child {
  std::string name;
  pid_t pid;
  int go_on;

  Child() {
    int said[2], wait[2];
    EXPECT_EQ(::pipe(said), 0);
    EXPECT_EQ(::pipe(wait), 0);
    pid = ::fork();
    if (pid == 0) {
      ::close(wait[1]);
      const auto own = process_name();
      const bool written = ::write(said[1], own.data(), own.size()) == static_cast<ssize_t>(own.size());
      ::close(said[1]);
      char byte;
      while (::read(wait[0], &byte, 1) > 0) {
      }
      ::_exit(written ? 0 : 1);
    }
    ::close(said[1]);
    ::close(wait[0]);
    go_on = wait[1];
    char buffer[64];
    for (ssize_t n; (n = ::read(said[0], buffer, sizeof buffer)) > 0;) name.append(buffer, static_cast<std::size_t>(n));
    ::close(said[0]);
  }

  void end() {
    ::close(go_on);
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  }
};

TEST(ProcessName, IsTheSameWithinAProcessAndAnotherOutside) {
  Child child;
  EXPECT_EQ(process_name(), process_name());
  EXPECT_NE(child.name, process_name());
  child.end();
}

TEST(ProcessName, TellsTheLivingFromTheGone) {
  Child child;
  EXPECT_FALSE(process_is_gone(process_name()));
  EXPECT_FALSE(process_is_gone(child.name));
  child.end();
  EXPECT_TRUE(process_is_gone(child.name));
}

TEST(ProcessName, IsReadFromTheNamesOfWhatItsProcessWrites) {
  EXPECT_EQ(writer_of_temporary(temporary_name("/runs.tmp-old/a.json")), process_name());
  EXPECT_EQ(writer_of_temporary("a.json.tmp-" + process_name()), process_name()) << "of older versions";
  for (const char* name : {"", "a.json", "a.json.tmp-", "a.json.tmp-old", "a.tmp-0123456789abcdef-17/b"})
    EXPECT_EQ(writer_of_temporary(name), std::nullopt) << name;
}

TEST(ProcessName, OfAnotherMachineNothingIsKnown) {
  Child child;
  child.end();
  auto foreign = child.name;
  foreign[0] = foreign[0] == '0' ? '1' : '0';
  EXPECT_FALSE(process_is_gone(foreign));
  for (const char* text : {"", "-", "12", "a-b-c", "../-1"}) EXPECT_FALSE(process_is_gone(text)) << text;
  const auto place = child.name.substr(0, child.name.find('-'));
  for (const char* number : {"", "x", "-1", "0", "1x", "99999999999999999999"})
    EXPECT_FALSE(process_is_gone(place + "-" + number)) << number;
}

}  // namespace
}  // namespace millrace
