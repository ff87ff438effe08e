#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "millrace/core/files.h"
#include "millrace/io/tar.h"

namespace millrace {

// Writes a tar whose bytes depend on the samples alone: USTAR headers, mode 0644, owner 0, time 0, fields sorted; only
// a name that does not fit there gets a PAX header. The file appears with `commit`.
class TarWriter {
 public:
  explicit TarWriter(const fs::path& path);
  ~TarWriter();

  void write(const TarSample& sample);
  void write_member(const std::string& name, std::string_view bytes);
  AtomicFile::Written commit();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
