#pragma once
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::preflight {

// FOLDER/.preflight-PROCESS, in which all ranks try to write. Rank 0 cleans up: nothing stays, not even FOLDER if it
// was not there before.
class ScratchFolder {
 public:
  ScratchFolder() = default;
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Makes the folder and returns its path. `key`: the setting that `folder` comes from. Also removes what killed
  // processes of this machine left there. Error(io).
  std::filesystem::path make(const std::string& key, const std::filesystem::path& folder);
  // Removes the folder, if there is one. Any thread may call it.
  void remove();

 private:
  std::mutex mutex_;
  std::filesystem::path path_;                     // empty = none
  std::vector<std::filesystem::path> made_above_;  // FOLDER and what is above it, innermost first
};

}  // namespace millrace::preflight
