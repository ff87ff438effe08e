#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace millrace {

// Bytes that come once, from front to back: a pipe, an HTTP body, standard input, a buffer in memory.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills the front of `buffer`; 0 means the end. Error(io) when the source broke.
  virtual std::size_t read(std::span<std::byte> buffer) = 0;
};

// `-` (standard input), `pipe:COMMAND` (a shell command's output; a failing command is an Error at the end),
// `http://` and `https://` (a broken transfer goes on where it stopped, three times); other schemes: Error(io).
std::unique_ptr<ByteStream> open_stream(const std::string& url);

}  // namespace millrace
