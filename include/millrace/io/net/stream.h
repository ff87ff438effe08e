#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace millrace {

// Bytes that come once, from front to back: a pipe, an HTTP body, standard input, a buffer in memory.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills the front of `buffer`; 0 means the end. AccessError when the source was kept away, StorageError when it may
  // give more at another time; Error(io) when a command failed.
  virtual std::size_t read(std::span<std::byte> buffer) = 0;
  // Nothing more is wanted, though read() may not have come to the end. Error(io) when the source says only now that it
  // broke, as a command does by its status.
  virtual void finish() {}
};

// How patient a transfer is. With HTTP, a failure is a refused or broken connection, a stall, or status 408, 429 or
// 5xx; the transfer then continues where it stopped, not before Retry-After (up to 2 min) has passed. 1 MiB more of the
// body makes up for the failures before.
struct TransferOptions {
  int retries = 5;                            // failures in a row that are made up for
  std::chrono::milliseconds first_wait{500};  // before the first retry; doubled from one to the next, up to 16 s
  std::chrono::seconds stall_limit{60};       // so long without a byte is a failure
  std::optional<std::chrono::seconds> time_limit = std::nullopt;  // of the whole body
  std::chrono::seconds command_silence{300};                      // a command that writes nothing for so long is ended
  std::chrono::seconds command_end{60};  // so long may it take to end once all of its output was read
};

// `-` (standard input), `pipe:COMMAND` (a shell command's output; a failing command is an Error at the end, whether
// read() or finish() comes to it; who closes the stream before that ends the command and its children), `http://` and
// `https://`, `s3://BUCKET/KEY` (docs/formats.md has where credentials, region and endpoint are taken from); other
// schemes: Error(io).
std::unique_ptr<ByteStream> open_stream(const std::string& url, const TransferOptions& options = {});

// Ends what the first s3:// address has started. Where there was one, this has to happen before main returns, when
// nothing reads from it any more.
void close_s3();

}  // namespace millrace
