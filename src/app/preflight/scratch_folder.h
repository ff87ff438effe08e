#pragma once
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::preflight {

// FOLDER/.preflight-PROCESS, where all ranks try to write and rank 0 cleans up: nothing stays, not even FOLDER if it
// was not there before.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // The folder's path. `key` says where `folder` comes from. Removes what earlier processes of this machine left when
  // they were killed. Error(io).
  std::filesystem::path make(const std::string& key, const std::filesystem::path& folder);
  // From any thread; does nothing when there is nothing.
  void remove();

 private:
  std::mutex mutex_;
  std::filesystem::path path_;                     // empty: there is none
  std::vector<std::filesystem::path> made_above_;  // FOLDER and what is above it, innermost first
};

}  // namespace millrace::preflight
