#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace {

// A file that is read here and there. Error(io) when it cannot be opened, StorageError when storage fails, or when it
// was made shorter meanwhile.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }
  // When it was opened; 0 for what has none, as a pipe.
  std::uint64_t size() const { return bytes_; }
  // Returns how many bytes there were; less than asked for at the end of the file, which comes before size() where that
  // is no count of bytes.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> out) const;
  // A read at `offset` has found the end: throws NOTE [Cut short] where that is nearer than when the file was opened.
  void check_end(std::uint64_t offset) const;

 private:
  const std::string path_;
  const int fd_;
  std::uint64_t bytes_ = 0;
};

}  // namespace millrace
