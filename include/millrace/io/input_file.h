#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace millrace {

// A file that is read here and there. Error(io) when it cannot be opened, StorageError when storage fails.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::uint64_t size() const;
  // Returns how many bytes there were; less than asked for at the end of the file.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  const std::string path_;
  const int fd_;
};

}  // namespace millrace
