#include "losses.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

namespace millrace::inject {
namespace {

struct Rename {
  std::string from, to, before;  // before: another name of what stood at `to`, or empty
};

struct Losses {
  std::mutex mutex;
  std::map<std::string, off_t> unsynced;  // with their bytes when they were synced
  std::vector<Rename> renames;
  int kept = 0;
};

std::atomic<bool> remembers{false};

Losses& losses() {
  static Losses* const losses = new Losses;
  return *losses;
}

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash);
}

// By system calls, past our own functions of these names.
bool link_to(const std::string& from, const std::string& to) {
  return ::syscall(SYS_linkat, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0) == 0;
}
void move(const std::string& from, const std::string& to) {
  ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0);
}
void remove_name(const std::string& path) {
  if (!path.empty()) ::syscall(SYS_unlinkat, AT_FDCWD, path.c_str(), 0);
}

// Paths that lie at or below `from` lie at or below `to` now.
void rename_unsynced(const std::string& from, const std::string& to) {
  std::map<std::string, off_t> moved;
  for (const auto& [path, bytes] : losses().unsynced)
    moved[path == from || path.starts_with(from + "/") ? to + path.substr(from.size()) : path] = bytes;
  losses().unsynced = std::move(moved);
}

}  // namespace

void remember_losses() {
  remembers = true;
}

void note_writing(int fd, const std::string& path) {
  if (!remembers) return;
  struct stat status {};
  if (::fstat(fd, &status) != 0) return;
  const std::lock_guard lock(losses().mutex);
  losses().unsynced.try_emplace(path, status.st_size);
}

void note_synced(const std::string& path) {
  if (!remembers) return;
  const std::lock_guard lock(losses().mutex);
  losses().unsynced.erase(path);
  std::erase_if(losses().renames, [&](const Rename& rename) {
    if (folder_of(rename.to) != path) return false;
    remove_name(rename.before);
    return true;
  });
}

void note_renaming(const std::string& from, const std::string& to) {
  if (!remembers) return;
  const std::lock_guard lock(losses().mutex);
  char number[9];  // as of a half-written file, which a later start removes
  std::snprintf(number, sizeof number, "%08x", losses().kept++);
  std::string before = to + ".tmp-0000000000000000-0-" + number;
  if (!link_to(to, before)) before.clear();  // nothing there, or a folder
  losses().renames.push_back({from, to, before});
}

void note_renamed(const std::string& from, const std::string& to) {
  if (!remembers) return;
  const std::lock_guard lock(losses().mutex);
  rename_unsynced(from, to);
}

void note_removing(const std::string& path) {
  if (!remembers) return;
  const std::lock_guard lock(losses().mutex);
  losses().unsynced.erase(path);
  std::erase_if(losses().renames, [&](const Rename& rename) {
    if (path != rename.to && !path.starts_with(rename.to + "/")) return false;
    remove_name(rename.before);
    return true;
  });
}

void lose_what_was_not_synced() {
  if (!remembers) return;
  const std::lock_guard lock(losses().mutex);
  for (const auto& [path, bytes] : losses().unsynced) ::syscall(SYS_truncate, path.c_str(), bytes);
  for (auto rename = losses().renames.rbegin(); rename != losses().renames.rend(); ++rename) {
    move(rename->to, rename->from);
    if (!rename->before.empty()) move(rename->before, rename->to);
  }
}

}  // namespace millrace::inject
