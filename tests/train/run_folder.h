#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/temp_dir.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/core/run_files.h"
#include "mpi_world.h"

namespace millrace {

using Steps = std::set<std::int64_t>;

// A run folder that all ranks of the test share; rank 0 makes and removes it.
class RunFolder {
 public:
  RunFolder() {
    if (test_world().rank() == 0) folder_.emplace();
    path_ = test_world().group().broadcast(folder_ ? folder_->path().string() : "");
  }
  ~RunFolder() { test_world().group().barrier(); }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoint(std::int64_t step) const { return path_ / "checkpoints" / step_name(step); }

  // The steps of all checkpoints.
  Steps checkpoints() const {
    Steps steps;
    for (const auto& checkpoint : list_checkpoints(path_)) steps.insert(checkpoint.step);
    return steps;
  }
  std::vector<nlohmann::json> lines(const std::string& name) const {
    std::vector<nlohmann::json> all;
    std::ifstream in(path_ / name);
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

 private:
  std::optional<test::TempDir> folder_;
  std::filesystem::path path_;
};

}  // namespace millrace
