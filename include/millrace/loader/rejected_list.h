#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/core/files.h"
#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"

namespace millrace {

// 1, 10, 100, ...: of messages that may come a million times, the ones that are shown.
bool is_power_of_ten(std::uint64_t number);

// FOLDER/rank-00003.jsonl: the rows that this process has rejected, one JSON object each, for those who repair archives
// or look for the cause; filtered rows are not among them.
//
// NOTE [A list that survives kills]: a line is one write to the end of a file that no other process writes. A restart
// cuts off an incomplete last line, and does not list again what its own file has. The files of other ranks are not
// read: of 400 ranks they are a gigabyte, which each rank would read at every start. So a row is listed again if
// another rank reads it, after a resume or in a later pass.
//
// NOTE [What a list leaves out]: an archive lists at most its share of `max_lines` (at least 20); after that only its
// 100th, 1000th, ... row, whose line says how many there have been. After `max_lines` in all, and a line that says so,
// each archive lists only its 1st, 10th, 100th, ... row. So the file is bounded by a few lines per archive, and every
// archive with bad rows is named, however late it goes bad. The counts of all rows are in ledger.json.
//
// A list that cannot be written is given up with a warning. Safe to use from several threads.
class RejectedList {
 public:
  // `manifest` must outlive it.
  RejectedList(const fs::path& folder, int rank, const Manifest& manifest, std::size_t max_lines = 10000);
  ~RejectedList();
  RejectedList(const RejectedList&) = delete;
  RejectedList& operator=(const RejectedList&) = delete;

  void add(const Rejected& row);

 private:
  void open();
  void read_listed(std::string_view content);  // whole lines of the own file
  void append(const std::string& line);

  const fs::path folder_, path_;
  const Manifest& manifest_;
  const std::size_t max_lines_, max_lines_of_archive_;
  std::mutex mutex_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> listed_;  // hash of the archive's path, row
  std::map<std::uint64_t, std::uint64_t> rejected_;  // hash of the archive's path -> rejected rows, listed or not
  std::size_t lines_ = 0;
  bool given_up_ = false;
  int fd_ = -1;  // opened with the first row
};

}  // namespace millrace
