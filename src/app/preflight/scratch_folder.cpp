#include "preflight/scratch_folder.h"

#include "millrace/core/error.h"
#include "millrace/core/process_name.h"

namespace millrace::preflight {

namespace fs = std::filesystem;

constexpr const char* prefix = ".preflight-";

ScratchFolder::ScratchFolder(fs::path run_dir, const std::string& owner)
    : run_dir_(std::move(run_dir)), path_(run_dir_ / (prefix + owner)) {}

static void remove_leftovers(const fs::path& run_dir) {
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(run_dir, ignored)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(prefix) && process_is_gone(name.substr(std::string_view(prefix).size())))
      left.push_back(entry.path());
  }
  for (const auto& path : left) fs::remove_all(path, ignored);
}

void ScratchFolder::make() {
  const std::lock_guard lock(mutex_);
  std::error_code error;
  for (auto above = run_dir_.lexically_normal(); !above.empty() && !fs::exists(above, error);
       above = above.parent_path())
    made_above_.push_back(above);
  made_ = true;
  fs::create_directories(path_, error);
  if (error) fail(Exit::io, "run.dir: cannot write in {}: {}", run_dir_.string(), error.message());
  remove_leftovers(run_dir_);
}

void ScratchFolder::remove() {
  const std::lock_guard lock(mutex_);
  if (!made_) return;
  made_ = false;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  for (const auto& folder : made_above_) fs::remove(folder, ignored);  // not if somebody else uses it by now
}

}  // namespace millrace::preflight
