#pragma once
#include <filesystem>
#include <mutex>
#include <vector>

namespace millrace::preflight {

// RUN/.preflight-PROCESS, where all ranks try to write and rank 0 cleans up: nothing stays, not even RUN if it was not
// there before.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // The folder's path. Removes what earlier processes of this machine left when they were killed. Error(io).
  std::filesystem::path make(const std::filesystem::path& run_dir);
  // From any thread; does nothing when there is nothing.
  void remove();

 private:
  std::mutex mutex_;
  std::filesystem::path path_;                     // empty: there is none
  std::vector<std::filesystem::path> made_above_;  // run.dir and what is above it, innermost first
};

}  // namespace millrace::preflight
