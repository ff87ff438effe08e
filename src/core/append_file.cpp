#include "millrace/core/append_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "millrace/core/files.h"
#include "millrace/core/log.h"

namespace millrace {

constexpr std::size_t max_waiting = 64 << 20;  // bytes

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)), fd_(open_to_append(path_)) {}

AppendFile::~AppendFile() {
  flush();
  dropped_ += entries_.size();
  if (dropped_) log::warning("{}: {} entries could not be written and are lost", path_.string(), dropped_);
  ::close(fd_);
}

void AppendFile::add(std::string entry) {
  if (bytes_ + entry.size() > max_waiting) {
    ++dropped_;
    return;
  }
  bytes_ += entry.size();
  entries_.push_back(std::move(entry));
}

bool AppendFile::flush() {
  while (!entries_.empty() && write_first()) entries_.pop_front();
  if (entries_.empty()) fails_ = false;
  return entries_.empty();
}

bool AppendFile::sync() {
  flush();
  const bool is_synced = ::fdatasync(fd_) == 0 || errno == EINVAL;  // a pipe, or /dev/null
  if (!is_synced && !std::exchange(cannot_sync_, true))
    log::warning("{}: {}; its newest entries may be lost with the machine", path_.string(), std::strerror(errno));
  const bool has_dropped = std::exchange(dropped_at_sync_, dropped_) != dropped_;
  return is_synced && entries_.empty() && !has_dropped;
}

void AppendFile::forget() {
  entries_.clear();
  bytes_ = 0;
}

bool AppendFile::write_first() {
  auto& entry = entries_.front();
  std::string_view rest = entry;
  const bool is_written = write_all(fd_, rest);
  const auto bytes = entry.size() - rest.size();
  bytes_ -= bytes;
  entry.erase(0, bytes);
  if (!is_written && !std::exchange(fails_, true))
    log::warning("{}: {}; what belongs there waits in memory", path_.string(), std::strerror(errno));
  return is_written;
}

}  // namespace millrace
