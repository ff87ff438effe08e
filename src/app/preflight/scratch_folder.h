#pragma once
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::preflight {

// RUN/.preflight-PROCESS, where ranks try to write. Nothing of it stays, not even RUN if it was not there before.
class ScratchFolder {
 public:
  // `owner`: process_name() of rank 0.
  ScratchFolder(std::filesystem::path run_dir, const std::string& owner);
  ~ScratchFolder() { remove(); }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // By one rank. Removes what earlier processes of this machine left when they were killed. Error(io).
  void make();
  // By that rank, from any thread; does nothing when there is nothing.
  void remove();

 private:
  const std::filesystem::path run_dir_, path_;
  std::mutex mutex_;
  bool made_ = false;
  std::vector<std::filesystem::path> made_above_;  // run.dir and what is above it, innermost first
};

}  // namespace millrace::preflight
