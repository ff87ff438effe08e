#pragma once
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "millrace/checkpoint/manifest.h"

namespace millrace {

// Reads files of a published checkpoint back, in a thread; the destructor gives up. A file that cannot be read is tried
// again for a while, and not called damaged for it.
class ReadBack {
 public:
  ReadBack(std::filesystem::path checkpoint, std::vector<CheckpointFile> files);

  bool done() const { return done_; }
  void wait() { thread_.join(); }
  const std::filesystem::path& checkpoint() const { return checkpoint_; }
  // What is wrong with the first file that is not as it was written, or that cannot be read; empty: nothing. Call after
  // wait().
  const std::string& damage() const { return damage_; }
  const std::string& unreadable() const { return unreadable_; }
  // Time it took, with the pauses between attempts. Call after wait().
  double seconds() const { return seconds_; }

 private:
  void read(const std::stop_token& stop);
  std::string find_damage(bool is_last_attempt, const std::stop_token& stop);

  std::filesystem::path checkpoint_;
  std::vector<CheckpointFile> files_;
  std::size_t looked_at_ = 0;  // files
  std::string damage_, unreadable_;
  double seconds_ = 0;
  std::atomic<bool> done_{false};
  std::jthread thread_;
};

}  // namespace millrace
