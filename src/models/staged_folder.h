#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace millrace {

// A folder that is filled under a temporary name beside its final one and appears whole or not at all. What a killed
// process has left of it is removed by the next one.
class StagedFolder {
 public:
  // Error(usage) when `final_path`, or what it links to, exists and is not an empty folder.
  explicit StagedFolder(std::filesystem::path final_path);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }
  // A new folder inside.
  std::filesystem::path subfolder(const std::filesystem::path& name) const;
  void publish();

 private:
  std::filesystem::path final_, temporary_;
};

// In the style of the reference writers.
void write_json(const std::filesystem::path& path, const nlohmann::json& json);

// Copies the files of `source` and its subfolders byte for byte, symbolic links as what they point to (the hub's cache
// is made of links), as far as they are wanted.
void copy_folder(const std::filesystem::path& source, const std::filesystem::path& target);

// Whether copy_folder takes a file: beside plain safetensors the same weights in other formats and as fp16 are left
// out.
bool is_copied(const std::filesystem::path& file);

}  // namespace millrace
