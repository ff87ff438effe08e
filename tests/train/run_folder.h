#pragma once
#include <fmt/format.h>

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

// The folder as a rank sees it whose storage is out of date: what it writes into the first two saves of a step arrives,
// but what it reads of the published checkpoint may be other than what lies there.
class StaleSight {
 public:
  StaleSight(const RunFolder& run, std::int64_t step) : real_(run.checkpoint(step)), seen_(path() / "checkpoints") {
    std::filesystem::create_directory(seen_);
    seen_ /= real_.filename();
    for (const char* const save : {".tmp-1", ".tmp-2"})
      std::filesystem::create_directory_symlink(real_.string() + save, seen_.string() + save);
  }

  // The run's folder.
  const std::filesystem::path& path() const { return folder_.path(); }

  // In place of rank 0's tensors there is something else.
  void spoil() {
    std::filesystem::create_directory(seen_);
    std::vector<std::string> others = {"MANIFEST.json", "MANIFEST.xxh3", "ledger.json"};
    for (int rank = 1; rank < test_world().size(); ++rank) others.push_back(shard_of(rank));
    for (const auto& name : others) std::filesystem::create_symlink(real_ / name, seen_ / name);
    std::ofstream(seen_ / shard_of(0)) << "something else";
  }
  void repair() {
    std::filesystem::remove_all(seen_);
    std::filesystem::create_directory_symlink(real_, seen_);
  }

 private:
  static std::string shard_of(int rank) {
    return fmt::format("shard-{:05d}-of-{:05d}.safetensors", rank, test_world().size());
  }

  const test::TempDir folder_;
  const std::filesystem::path real_;
  std::filesystem::path seen_;
};

}  // namespace millrace
