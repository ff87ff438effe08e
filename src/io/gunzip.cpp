#include "millrace/io/gunzip.h"

#include "text_file.h"

namespace millrace {

std::string gunzip_file(const fs::path& path) {
  TextFile file(path);
  std::string text;
  for (int byte = file.get(); byte != TextFile::end; byte = file.get()) text += static_cast<char>(byte);
  return text;
}

}  // namespace millrace
