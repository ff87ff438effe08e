#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <string>
#include <vector>

#include "core/file_size_limit.h"
#include "core/temp_dir.h"
#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "millrace/core/storage_error.h"

namespace {

int answer_of_directories = 0;     // an errno, of fsync; 0 = as the system has it
int entries_before_eio = INT_MAX;  // that readdir gives

}  // namespace

// Before the C library's.
extern "C" int fsync(int fd) {
  struct stat is {};
  if (answer_of_directories == 0 || ::fstat(fd, &is) != 0 || !S_ISDIR(is.st_mode))
    return static_cast<int>(::syscall(SYS_fsync, fd));
  errno = answer_of_directories;
  return -1;
}

extern "C" dirent* readdir(DIR* folder) {
  static const auto real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (entries_before_eio == INT_MAX || entries_before_eio-- > 0) return real(folder);
  errno = EIO;
  return nullptr;
}

namespace millrace {
namespace {

using test::FileSizeLimit;
using test::TempDir;
using testing::HasSubstr;

std::size_t files_in(const TempDir& dir) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()));
}

// The error of `action`, which must be one of input/output.
template <class Action>
Error io_error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(Exit::done, "");
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TempDir dir;
  AtomicFile file(dir / "a");
  file.write("hello ");
  file.write("world");
  EXPECT_FALSE(fs::exists(dir / "a"));
  const AtomicFile::Written written = file.commit();
  EXPECT_EQ(read_file(dir / "a"), "hello world");
  EXPECT_EQ(written.bytes, 11u);
  EXPECT_EQ(written.digest, hash128("hello world"));
  EXPECT_EQ(hash_file(dir / "a"), written.digest);
  EXPECT_EQ(files_in(dir), 1u);
}

TEST(AtomicFile, LeavesNothingBehindAnException) {
  const TempDir dir;
  dir.write("a", "old");
  try {
    AtomicFile file(dir / "a");
    file.write("new");
    throw std::runtime_error("in between");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(files_in(dir), 1u);
}

TEST(AtomicFile, ReplacesAnOlderFile) {
  const TempDir dir;
  write_file_atomically(dir / "a", "old");
  write_file_atomically(dir / "a", "");
  EXPECT_EQ(read_file(dir / "a"), "");
}

TEST(AtomicFile, AWriteThatFailsNamesTheFileAndLeavesTheOldOne) {
  const TempDir dir;
  dir.write("a", "old");
  const Error error = io_error_of([&] {
    const FileSizeLimit limit(1000);
    write_file_atomically(dir / "a", std::string(2000, 'x'));
  });
  EXPECT_THAT(error.what(), HasSubstr((dir / "a").string()));
  EXPECT_THAT(error.hint(), HasSubstr("ulimit -f"));
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(files_in(dir), 1u);
}

// In a folder that others write to, too: the name of older versions could be known before.
TEST(AtomicFile, NothingIsWrittenThroughALinkThatWaitsForIt) {
  const TempDir dir;
  const auto theirs = dir.write("theirs", "precious");
  fs::create_symlink(theirs, (dir / "a").string() + ".tmp-" + process_name());
  write_file_atomically(dir / "a", "new");
  EXPECT_EQ(read_file(theirs), "precious");
  EXPECT_EQ(read_file(dir / "a"), "new");
  EXPECT_FALSE(fs::is_symlink(dir / "a"));
}

TEST(AtomicFile, TwoOfOneNameDoNotMeet) {
  const TempDir dir;
  AtomicFile first(dir / "a"), second(dir / "a");
  first.write("of the first");
  second.write("2nd");
  first.commit();
  EXPECT_EQ(read_file(dir / "a"), "of the first");
  second.commit();
  EXPECT_EQ(read_file(dir / "a"), "2nd");
  EXPECT_EQ(files_in(dir), 1u);
}

TEST(AtomicFile, TheFirstOfTwoStaysWhereItMayNotBeReplaced) {
  const TempDir dir;
  AtomicFile first(dir / "a"), second(dir / "a");
  first.write("of the first");
  second.write("2nd");
  EXPECT_TRUE(first.commit_if_absent());
  EXPECT_FALSE(second.commit_if_absent());
  EXPECT_EQ(read_file(dir / "a"), "of the first");
  EXPECT_FALSE(write_file_if_absent(dir / "a", "3rd"));
  EXPECT_EQ(read_file(dir / "a"), "of the first");
}

TEST(AtomicFile, WhatIsPutWhereNothingIsLeavesNoTemporaryFile) {
  const TempDir dir;
  EXPECT_TRUE(write_file_if_absent(dir / "a", "alone"));
  EXPECT_EQ(files_in(dir), 1u);
  EXPECT_FALSE(write_file_if_absent(dir / "a", "late"));
  EXPECT_EQ(files_in(dir), 1u);
}

TEST(Abandoned, IsWhatAProcessWasWritingThatIsGone) {
  const TempDir dir;
  const AtomicFile living(dir / "a");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile half(dir / "b");
    half.write("half");
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  std::size_t abandoned = 0;
  for (const auto& entry : fs::directory_iterator(dir.path())) {
    EXPECT_EQ(is_abandoned(entry), entry.path().stem() == "b") << entry.path();
    abandoned += is_abandoned(entry);
  }
  EXPECT_EQ(abandoned, 1u);
  EXPECT_EQ(files_in(dir), 2u);
}

TEST(Abandoned, FilesOfOlderVersionsHaveNoNumberAtTheEnd) {
  const TempDir dir;
  const auto own = process_name(), gone = own.substr(0, own.find('-')) + "-4194999";  // beyond pid_max
  for (const std::string number : {"", "-0123abcd"}) {
    const auto is_left = [&](const std::string& process) {
      return is_abandoned(fs::directory_entry(dir.write("a.json.tmp-" + process + number, "{")));
    };
    EXPECT_TRUE(is_left(gone)) << number;
    EXPECT_FALSE(is_left(own)) << number;
    EXPECT_FALSE(is_left("0123456789abcdef-4194999")) << "another machine's" << number;
  }
}

TEST(Abandoned, IsNothingThatIsCalledOtherwise) {
  const TempDir dir;
  const auto gone = process_name().substr(0, process_name().find('-')) + "-4194999";  // beyond pid_max
  for (const std::string name :
       {"a.tmp-old", "a.tmp-1", "a.tmp-0123456789abcdef-", "a.tmp-0123456789abcdef-x", "a.tmp-0123456789abcde-17",
        "a.tmp-0123456789ABCDEF-17", "a.tmp-0123456789abcdef-17-0123abc", "a.tmp-0123456789abcdef-17-0123abcd-1"}) {
    const auto path = dir.write(name, "theirs");
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(48));
    EXPECT_FALSE(is_abandoned(fs::directory_entry(path))) << name;
  }
  for (const auto& name : {"a.tmp-" + gone + ".bak", "a.tmp-" + gone + "~", "a." + gone})
    EXPECT_FALSE(is_abandoned(fs::directory_entry(dir.write(name, "theirs")))) << name;
}

TEST(AtomicFile, AMissingDirectoryIsNamed) {
  const TempDir dir;
  EXPECT_THAT(io_error_of([&] { AtomicFile file(dir / "no/such"); }).what(), HasSubstr("no/such"));
}

TEST(Files, AMissingFileIsNamed) {
  EXPECT_THAT(io_error_of([] { read_file("/no/such/file"); }).what(), HasSubstr("/no/such/file"));
  EXPECT_THAT(io_error_of([] { hash_file("/no/such/file"); }).what(), HasSubstr("/no/such/file"));
  EXPECT_THAT(io_error_of([] { read_file("/tmp"); }).what(), HasSubstr("/tmp"));
}

TEST(Files, LargeFilesAreReadWhole) {
  const TempDir dir;
  std::string content(3'000'001, 'x');
  content[2'500'000] = '\0';
  write_file_atomically(dir / "a", content);
  EXPECT_EQ(read_file(dir / "a"), content);
  EXPECT_EQ(hash_file(dir / "a"), hash128(content));
}

// How much of a file is in memory: 0 to 1.
double cached_share(const fs::path& path) {
  const std::size_t bytes = fs::file_size(path), page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  EXPECT_NE(mapped, MAP_FAILED);
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  EXPECT_EQ(::mincore(mapped, bytes, pages.data()), 0);
  ::munmap(mapped, bytes);
  const auto cached = std::ranges::count_if(pages, [](unsigned char is) { return (is & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

TEST(Files, LeaveTheMemoryWhenTheirPagesAreDropped) {
  const TempDir dir;
  for (const char* name : {"a", "by hand"}) write_file_atomically(dir / name, std::string(4 << 20, 'x'));
  const int fd = ::open((dir / "by hand").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(fd);
  if (cached_share(dir / "by hand") > 0.5) GTEST_SKIP() << "this file system keeps them, as tmpfs does";
  drop_cached_pages(dir / "a");
  EXPECT_LT(cached_share(dir / "a"), 0.5);
}

TEST(Files, ASlashAtTheEndIsNoPartOfAName) {
  EXPECT_EQ(without_last_slash("runs/first/").filename(), "first");
  EXPECT_EQ(without_last_slash("runs/first"), "runs/first");
  EXPECT_EQ(without_last_slash("/"), "/");
}

TEST(Files, SpellingsOfAPathHaveOneNormalForm) {
  const TempDir dir;
  const auto here = fs::current_path();
  for (const char* spelled : {"runs/first", "runs/first/", "./runs/first/.", "runs//second/../first"})
    EXPECT_EQ(normal_path(spelled), here / "runs/first") << spelled;
  EXPECT_EQ(normal_path("."), here);
  EXPECT_EQ(normal_path("/"), "/");
  EXPECT_EQ(normal_path("/.."), "/");
  fs::create_directory_symlink(dir / "first", dir / "best");
  EXPECT_EQ(normal_path(dir / "best/").filename(), "best");
}

TEST(Files, APathIsResolvedWhereItsLinksLead) {
  const TempDir dir;
  const auto root = fs::canonical(dir.path());
  fs::create_directories(root / "first/a");
  fs::create_directory_symlink(root / "first", root / "best");
  for (const auto& spelled : {root / "first/a", root / "best/a/", root / "best/../best/./a"})
    EXPECT_EQ(resolved_path(spelled), root / "first/a") << spelled;
  for (const auto& nowhere : {root / "best/b", root / "best/b/", fs::path("nowhere/at all")})
    EXPECT_EQ(resolved_path(nowhere), nowhere);
}

TEST(Files, TheNearestFolderThatIsThereIsFound) {
  const TempDir dir;
  fs::create_directory(dir / "a");
  EXPECT_EQ(existing_ancestor(dir / "a"), dir / "a");
  for (const char* name : {"a/b", "a/b/", "a/b/c"}) EXPECT_EQ(existing_ancestor(dir / name), dir / "a") << name;
  EXPECT_EQ(existing_ancestor(dir / "b/c"), dir.path());
  EXPECT_EQ(existing_ancestor("nowhere at all/b"), fs::current_path());
  EXPECT_EQ(existing_ancestor("/nowhere at all"), "/");
}

TEST(Files, DirectoriesAreMadeWithThoseAboveThem) {
  const TempDir dir;
  for (int twice = 0; twice < 2; ++twice) make_directories(dir / "a/b");
  EXPECT_TRUE(fs::is_directory(dir / "a/b"));
}

TEST(Files, ADirectoryThatCannotBeMadeIsNamedWithTheCure) {
  const TempDir dir;
  dir.write("a", "a file");
  EXPECT_THROW(make_directories(dir / "a/b"), AccessError);
  const Error error = io_error_of([&] { make_directories(dir / "a/b"); });
  EXPECT_THAT(error.what(), HasSubstr("cannot make " + (dir / "a/b").string() + ": Not a directory"));
  EXPECT_THAT(error.hint(), HasSubstr("a part of the path is a file"));
}

TEST(Files, ADirectoryIsPublishedUnderItsName) {
  const TempDir dir;
  fs::create_directory(dir / "step.tmp");
  write_file_atomically(dir / "step.tmp" / "a", "1");
  publish_directory(dir / "step.tmp", dir / "step");
  EXPECT_FALSE(fs::exists(dir / "step.tmp"));
  EXPECT_EQ(read_file(dir / "step" / "a"), "1");
}

TEST(Files, ADirectoryThatCannotBeSyncedIsLeftAsItIsAndOneThatFailsIsAnError) {
  const TempDir dir;
  for (const int answer : {EINVAL, EBADF, ENOTSUP}) {
    answer_of_directories = answer;
    EXPECT_NO_THROW(write_file_atomically(dir / "a", "1")) << answer;
  }
  answer_of_directories = EIO;
  EXPECT_THROW(write_file_atomically(dir / "a", "1"), StorageError);
  answer_of_directories = 0;
}

TEST(Files, WhatCouldNotBeWrittenRemains) {
  const TempDir dir;
  const std::string text(2000, 'x');
  std::string_view rest = text;
  const int fd = open_to_append(dir / "a");
  {
    const FileSizeLimit limit(1500);
    EXPECT_FALSE(write_all(fd, rest));
    EXPECT_EQ(errno, EFBIG);
  }
  EXPECT_EQ(rest.size(), 500u);
  EXPECT_TRUE(write_all(fd, rest));
  EXPECT_TRUE(rest.empty());
  ::close(fd);
  EXPECT_EQ(read_file(dir / "a"), text);
}

TEST(Files, AFolderIsListedAndMayBeChangedMeanwhile) {
  const TempDir dir;
  for (const char* name : {"a", "b", "c"}) dir.write(name, name);
  std::error_code error = std::make_error_code(std::errc::io_error);
  const auto entries = list_folder(dir.path(), error);
  EXPECT_EQ(entries.size(), 3u);
  EXPECT_FALSE(error);
  for (const auto& entry : entries) EXPECT_TRUE(fs::remove(entry.path()));
  EXPECT_TRUE(list_folder(dir / "nowhere", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
}

TEST(Files, AFolderIsListedAsFarAsItCanBeRead) {
  const TempDir dir;
  for (const char* name : {"a", "b", "c"}) dir.write(name, name);
  for (int entries = 0; entries <= 5; ++entries) {  // with . and ..
    std::error_code error;
    entries_before_eio = entries;
    const auto listed = list_folder(dir.path(), error);
    entries_before_eio = INT_MAX;
    EXPECT_EQ(error, std::errc::io_error) << entries;
    const int files = static_cast<int>(listed.size());
    EXPECT_LE(files, entries);
    EXPECT_GE(files, entries - 2);
  }
}

// A process of another container may have the same number.
TEST(Files, ATemporaryDirectoryIsNew) {
  const TempDir dir;
  const auto first = make_temporary_directory(dir / "a/b"), second = make_temporary_directory(dir / "a/b");
  EXPECT_NE(first, second);
  for (const auto& path : {first, second}) {
    EXPECT_TRUE(fs::is_empty(path)) << path;
    EXPECT_EQ(path.parent_path(), dir / "a");
    EXPECT_EQ(path.string().find((dir / "a/b").string() + ".tmp-" + process_name() + "-"), 0u) << path;
  }
}

TEST(RunFiles, HaveNamesThatSortByNumber) {
  EXPECT_EQ(checkpoints_in("run"), fs::path("run/checkpoints"));
  EXPECT_EQ(step_name(2000), "step-00002000");
  EXPECT_EQ(step_name(123'456'789), "step-123456789");
  EXPECT_EQ(rank_name(12), "rank-00012");
}

TEST(RunFiles, AStepIsReadFromItsNameAlone) {
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{2000}, std::int64_t{123'456'789}, INT64_MAX})
    EXPECT_EQ(step_of_name(step_name(step)), step);
  EXPECT_EQ(step_of_name("step-000000002000"), 2000);
  for (const char* name :
       {"", "step-", "step-2000", "step-0000200x", "step-00002000 ", "step--0002000", "step-+0002000", "Step-00002000",
        "step-00002000.trash", "step-00002000/", "step-9223372036854775808"})
    EXPECT_FALSE(step_of_name(name)) << name;
}

TEST(Errno, AFullDiskNamesTheFileAndTheCure) {
  const Error error = io_error_of([] {
    errno = ENOSPC;
    fail_errno("cannot write", "/d/a");
  });
  EXPECT_THAT(error.what(), HasSubstr("cannot write /d/a: No space left"));
  EXPECT_THAT(error.hint(), HasSubstr("free some space"));
  EXPECT_THAT(error.hint(), HasSubstr("df -i"));
}

// Where a message may come from storage that is away, other code goes by these words.
TEST(Errno, HasItsName) {
  for (const auto& [code, name] : {std::pair{ENOENT, "ENOENT"}, {EACCES, "EACCES"}, {EPERM, "EPERM"}, {EIO, "EIO"}})
    EXPECT_EQ(errno_name(code), name);
  // A number of theirs would be taken for an exit code: 74 is EBADMSG.
  for (const int code :
       {EAGAIN,    EBADF, EBADMSG,   ECANCELED,  EEXIST,    EINTR, ENODATA, ENODEV,  ENOLCK, ENOMEM,  ENONET, ENOSYS,
        ENOTEMPTY, ENXIO, EHWPOISON, EOPNOTSUPP, EOVERFLOW, EPIPE, EPROTO,  EREMCHG, ETIME,  EUCLEAN, EXDEV})
    EXPECT_EQ(errno_name(code).front(), 'E') << code;
  EXPECT_EQ(errno_name(4321), "errno 4321");
}

// A server or a network that is away, as nfs(5) and Lustre's manual have it, what FUSE hands on (ENOSPC of a mount
// whose cache is full), too little memory, too many open files, refusals.
TEST(Errno, IsAFaultOfTheStorageUnlessThePathIsWrong) {
  for (const int code : {EIO,          EREMOTEIO,   ESTALE,       ETIMEDOUT, ENOTCONN,     ESHUTDOWN,  EHOSTDOWN,
                         EHOSTUNREACH, ENETDOWN,    ENETUNREACH,  ENETRESET, ECONNREFUSED, ECONNRESET, ECONNABORTED,
                         ENOLINK,      ECOMM,       EMFILE,       ENFILE,    EACCES,       EPERM,      ENOKEY,
                         EKEYEXPIRED,  EKEYREVOKED, EKEYREJECTED, EINTR,     EAGAIN,       ENOMEM,     ECANCELED,
                         ENODEV,       ENXIO,       EPROTO,       EHWPOISON, ENOSPC,       EDQUOT,     4321})
    EXPECT_TRUE(is_storage_fault(code)) << errno_name(code);
  for (const int code :
       {0, ENOENT, ENOTDIR, EISDIR, ELOOP, ENAMETOOLONG, EINVAL, EILSEQ, ESPIPE, EUCLEAN, EBADMSG, EBADF})
    EXPECT_FALSE(is_storage_fault(code)) << errno_name(code);
}

TEST(RunFiles, ARunIsFoundFromItsCheckpointHoweverThatIsSpelled) {
  const TempDir dir;
  const auto root = fs::canonical(dir.path()), step = root / "run/checkpoints/step-00000002";
  fs::create_directories(step);
  dir.write("run/config.yaml", "");
  fs::create_directory_symlink(step, root / "best");
  fs::create_directories(root / "other/checkpoints");
  fs::create_directory_symlink(step, root / "other/checkpoints/step-00000002");
  for (const auto& spelled : {step, step / "", step / ".", root / "other/../run/checkpoints/step-00000002",
                              root / "best", root / "other/checkpoints/step-00000002"}) {
    EXPECT_EQ(place_of_checkpoint(spelled), step) << spelled;
    EXPECT_TRUE(fs::equivalent(run_of_checkpoint(spelled), root / "run")) << spelled;
  }
  EXPECT_EQ(place_of_checkpoint(root / "gone"), root / "gone");
}

// To a disk that has room.
TEST(RunFiles, ACheckpointMayHaveMovedAndLeftALink) {
  for (const char* archive : {"archive", "archive/run/checkpoints"}) {
    const TempDir dir;
    const auto moved = dir / archive / "step-00000002", link = dir / "run/checkpoints/step-00000002";
    fs::create_directories(moved);
    fs::create_directories(link.parent_path());
    fs::create_directory_symlink(moved, link);
    EXPECT_TRUE(is_checkpoint_of(dir / "run", link));
    EXPECT_EQ(run_of_checkpoint(link), dir / "run");
    EXPECT_FALSE(is_checkpoint_of(dir / "run", moved));
  }
}

TEST(RunFiles, ARunsCheckpointsMayLieBehindALink) {
  const TempDir dir;
  fs::create_directories(dir / "scratch/step-00000002");
  fs::create_directories(dir / "run");
  fs::create_directory_symlink(dir / "scratch", dir / "run/checkpoints");
  EXPECT_EQ(run_of_checkpoint(dir / "run/checkpoints/step-00000002"), dir / "run");
}

}  // namespace
}  // namespace millrace
