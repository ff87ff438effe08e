#pragma once
#include <cstddef>
#include <deque>
#include <filesystem>
#include <string>

namespace millrace {

// A file that grows by whole entries: lines, records. What cannot be written now waits in memory for the next flush, so
// a full disk neither ends a run nor tears an entry; beyond 64 MiB new entries are dropped. Warns when it begins to
// fail, and once with what was lost.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);  // made where there is none; Error(io)
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  void add(std::string entry);
  bool flush();  // true when nothing waits
  // Bytes that are not written yet.
  std::size_t waiting() const { return bytes_; }
  // Writes everything and waits until it is on disk; false if something could not be written, or was dropped since the
  // last sync.
  bool sync();
  // Discards what has not been written yet.
  void forget();

 private:
  bool write_first();

  std::filesystem::path path_;
  int fd_ = -1;
  std::deque<std::string> entries_;  // not written yet; of the first one a part may be
  std::size_t bytes_ = 0, dropped_ = 0;
  std::size_t dropped_at_sync_ = 0;  // at the last sync
  bool fails_ = false, cannot_sync_ = false;
};

}  // namespace millrace
