#include "preflight/scratch_folder.h"

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/process_name.h"

namespace millrace::preflight {

constexpr std::string_view prefix = ".preflight-";

static void remove_leftovers(const fs::path& run_dir) {
  std::error_code ignored;
  for (const auto& entry : list_folder(run_dir, ignored)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with(prefix) && process_is_gone(name.substr(prefix.size()))) fs::remove_all(entry.path(), ignored);
  }
}

fs::path ScratchFolder::make(const std::string& key, const fs::path& folder) {
  const std::lock_guard lock(mutex_);
  std::error_code error;
  for (auto above = folder.lexically_normal();
       !above.empty() && fs::symlink_status(above, error).type() == fs::file_type::not_found;
       above = above.parent_path())
    made_above_.push_back(above);
  path_ = folder / (std::string(prefix) + process_name());
  fs::create_directories(path_, error);
  if (error) fail(Exit::io, "{}: cannot write in {}: {}", key, folder.string(), error.message());
  remove_leftovers(folder);
  return path_;
}

void ScratchFolder::remove() {
  const std::lock_guard lock(mutex_);
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  path_.clear();
  for (const auto& folder : made_above_) fs::remove(folder, ignored);  // not if somebody else uses it by now
  made_above_.clear();
}

}  // namespace millrace::preflight
