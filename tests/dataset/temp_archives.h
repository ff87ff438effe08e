#pragma once
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/tar_writer.h"

namespace millrace::test {

inline TarSample sample(const std::string& key, const std::string& jpg, const std::string& txt) {
  return {.key = key, .fields = {{"jpg", jpg}, {"txt", txt}}};
}

// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "millrace-test-XXXXXX").string();
    ensure(mkdtemp(name.data()) != nullptr, "no temporary folder");
    folder_ = name;
  }
  ~TempFolder() { fs::remove_all(folder_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write_tar(const std::string& name, const std::vector<TarSample>& samples) const {
    TarWriter tar(path(name));
    for (const TarSample& sample : samples) tar.write(sample);
    tar.commit();
  }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

 private:
  fs::path folder_;
};

}  // namespace millrace::test
