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
  // commit() if nothing is called PATH yet, else false: of several that do so at once, one succeeds (without hard links
  // perhaps more).
  bool commit_if_absent();

 private:
  void close_durably();

  fs::path path_, temp_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  Hasher128 hasher_;
};

void write_file_atomically(const fs::path& path, std::string_view content);
// Writes the file unless there is one, which stays; then false.
bool write_file_if_absent(const fs::path& path, std::string_view content);
std::string read_file(const fs::path& path);  // Error(io) naming the path
// open() with O_CLOEXEC, repeated if a signal interrupts it, as happens on network file systems; -1 with errno.
int open_file(const fs::path& path, int flags);
// Opens a file to append whole lines to; makes it if there is none. A symbolic link is not followed, since it may lead
// to a file of somebody else: Error(io) names it.
int open_to_append(const fs::path& path);
// Writes all of `rest`, in as many calls as it takes. False, with errno, on failure; `rest` is then what remains.
bool write_all(int fd, std::string_view& rest);
// The entries of a folder, in any order, as far as they can be read; all at once, so that the folder may be changed
// while one goes through them. `error` says why there are no more, also if there is no folder.
std::vector<fs::directory_entry> list_folder(const fs::path& folder, std::error_code& error);
void fsync_directory(const fs::path& path);
// Both must be in one directory, whose entry for `to` is on the disk afterwards.
void rename_durably(const fs::path& from, const fs::path& to);
// A folder's path without a slash at its end, with which it would have no filename().
fs::path without_last_slash(const fs::path& path);
// Absolute, without dots and a slash at its end, so that two spellings of a path compare equal. Links stay.
fs::path normal_path(const fs::path& path);
// Absolute, with all links followed; the path itself if that fails.
fs::path resolved_path(const fs::path& path);
// Absolute: the path, or the nearest folder above it that exists, which tells the disk that it will be made on. Empty
// if the working folder is gone.
fs::path existing_ancestor(const fs::path& path);
void make_directories(const fs::path& path);  // with all above it; those that exist are fine
// Makes a new directory beside `final_name`, which it is to be renamed to, under a temporary_name as AtomicFile's.
fs::path make_temporary_directory(const fs::path& final_name);
// Publishes a file that a library has written under a temporary name in the same directory: fsync, hash, rename.
AtomicFile::Written publish_file(const fs::path& temporary, const fs::path& final_name);
// Renames a finished temporary directory to its final name and makes both names durable.
void publish_directory(const fs::path& temporary, const fs::path& final_name);
Hash128 hash_file(const fs::path& path);
// Asks the system to forget the file's cached pages, so that the next read comes from the disk.
void drop_cached_pages(const fs::path& path);

}  // namespace millrace
