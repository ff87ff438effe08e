#pragma once
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

// The built program, run as a user runs it.
namespace millrace::e2e {

namespace fs = std::filesystem;

inline const std::string millrace = MILLRACE_BINARY;
inline const std::string shapes = MILLRACE_SHAPES;

struct Outcome {
  int exit_code = 0;
  std::string output;  // stdout and stderr
};

inline Outcome shell(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = ::popen(("{ " + command + "; } 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) outcome.output.append(buffer, n);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// One folder for the whole test program, removed at its end; holds 96 small images and the tiny pipeline.
inline const fs::path& workshop() {
  struct Workshop {
    fs::path path;
    Workshop() {
      std::string pattern = fs::temp_directory_path() / "millrace-e2e-XXXXXX";
      path = ::mkdtemp(pattern.data());
      const auto made =
          shell(shapes + " make --out " + (path / "shapes").string() + " --count 96 --per-archive 24 --side 64 && " +
                millrace + " init --preset tiny --out " + (path / "tiny").string());
      if (made.exit_code != 0) std::fprintf(stderr, "%s\n", made.output.c_str());
    }
    ~Workshop() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
      fs::remove_all(path.string() + ".mpirun", ignored);
    }
  };
  static const Workshop workshop;
  return workshop.path;
}

// Each command has session files of its own: two mpirun of one user that start at once and share them can both make
// their folder, and the one that comes second ends with "File exists" (Open MPI 4.1).
inline std::string mpirun(int ranks) {
  static std::atomic<int> commands = 0;
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 900 mpirun --oversubscribe --bind-to none "
         "--mca orte_tmpdir_base " +
         workshop().string() + ".mpirun/" + std::to_string(commands++) + " -n " + std::to_string(ranks) + " ";
}

// A training command on the workshop's images: 8 samples a step, everything recorded that comparisons need.
inline std::string train(const std::string& run, const std::string& settings) {
  const auto& w = workshop();
  return millrace + " train run.dir=" + (w / run).string() + " run.device=cpu model.pipeline=" + (w / "tiny").string() +
         " data.train.path=" + (w / "shapes").string() +
         " transform.resolution=32 encode.batch_size=8 batch.global=8 batch.micro=2 data.shuffle_block=2 "
         "optim.lr=1e-3 'optim.warmup=0 steps' "
         "log.ids=true 'log.every=1 steps' 'checkpoint.every=4 steps' " +
         settings;
}

inline std::string read(const fs::path& path) {
  const std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// How often `part` stands in `text`.
inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto place = text.find(part); place != text.npos; place = text.find(part, place + part.size())) ++found;
  return found;
}

inline std::vector<nlohmann::json> lines(const fs::path& path) {
  std::vector<nlohmann::json> result;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) result.push_back(nlohmann::json::parse(line));
  return result;
}

}  // namespace millrace::e2e
