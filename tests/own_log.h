#pragma once
#include <string>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"

namespace millrace::test {

// What this rank logs while it is there.
class OwnLog {
 public:
  OwnLog() { log::init({.console = false, .file = (folder_ / "log").string()}); }
  ~OwnLog() { log::init({}); }
  OwnLog(const OwnLog&) = delete;
  OwnLog& operator=(const OwnLog&) = delete;

  std::string text() const {
    log::flush();
    return read_file(folder_ / "log");
  }
  int count(const std::string& words) const {
    const auto all = text();
    int found = 0;
    for (auto at = all.find(words); at != all.npos; at = all.find(words, at + 1)) ++found;
    return found;
  }

 private:
  const TempDir folder_;
};

}  // namespace millrace::test
