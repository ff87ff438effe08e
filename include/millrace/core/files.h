#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "millrace/core/hash.h"

// Every file that must survive goes through here: temp name, checked writes, fsync, rename, fsync of the directory.
namespace millrace {

namespace fs = std::filesystem;

// Writes to a `temporary_name` (process_name.h), by which abandoned.h knows it, and hashes while writing; `commit`
// publishes it under PATH; the destructor removes what was not committed.
class AtomicFile {
 public:
  explicit AtomicFile(fs::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  // fsync, close, rename, fsync of the directory; every result is checked. Returns size and digest of the content.
  struct Written {
    std::uint64_t bytes;
    Hash128 digest;
  };
  Written commit();
  // The same where nothing is called PATH yet: of several that do so at once, one succeeds.
  bool commit_if_absent();

 private:
  void close_durably();

  fs::path path_, temp_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  Hasher128 hasher_;
};

void write_file_atomically(const fs::path& path, std::string_view content);
// Unless there is one, which stays: then false.
bool write_file_if_absent(const fs::path& path, std::string_view content);
std::string read_file(const fs::path& path);  // Error(io) naming the path
// open() with O_CLOEXEC, again where a signal came in between, as file systems of a network answer; -1 with errno.
int open_file(const fs::path& path, int flags);
// For whole lines at the end of a file, which is made where there is none. A link of that name is not followed, since
// it may lead to a file of somebody else: Error(io) names it.
int open_to_append(const fs::path& path);
// All of `rest`, in as many calls as it takes. False, with errno, where something of it remains, which `rest` is then.
bool write_all(int fd, std::string_view& rest);
// What lies in a folder, in any order, as far as it can be read; so that it may be changed while one goes through that.
// `error` says why there is no more, also where there is no folder.
std::vector<fs::directory_entry> list_folder(const fs::path& folder, std::error_code& error);
void fsync_directory(const fs::path& path);
// Both in one directory, whose entry for `to` is on the disk afterwards.
void rename_durably(const fs::path& from, const fs::path& to);
// A folder's name as it is without a slash at its end, behind which there is no filename().
fs::path without_last_slash(const fs::path& path);
// From the root, without dots and a slash at its end, so that two spellings of a path compare. Links stay.
fs::path normal_path(const fs::path& path);
// From the root, where links lead; the path itself where that cannot be told.
fs::path resolved_path(const fs::path& path);
// From the root, the path itself or the nearest folder above it that is there: on the disk of that, it will be made.
// Empty where the working folder is gone.
fs::path existing_ancestor(const fs::path& path);
void make_directories(const fs::path& path);  // with all above it; those that are there already are fine
// Makes a directory that is going to be renamed to `final_name`, beside it and under such a name as AtomicFile's; what
// lies there already is never taken.
fs::path make_temporary_directory(const fs::path& final_name);
// The same for a file that a library has written under a temporary name in the same directory: fsync, hash, rename.
AtomicFile::Written publish_file(const fs::path& temporary, const fs::path& final_name);
// Renames a finished temporary directory to its final name and makes both names durable.
void publish_directory(const fs::path& temporary, const fs::path& final_name);
Hash128 hash_file(const fs::path& path);
// What is read from the file next comes from the disk, as far as the system heeds that.
void drop_cached_pages(const fs::path& path);

}  // namespace millrace
