#include "millrace/io/net/stream.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "millrace/core/storage_error.h"
#include "millrace/io/net/urls.h"
#include "net/command_output.h"
#include "net/http_body.h"
#include "net/s3.h"

namespace millrace {

namespace {

// Never a StorageError: what was taken from it cannot be read again.
class StandardInput : public ByteStream {
 public:
  std::size_t read(std::span<std::byte> buffer) override {
    while (true) {
      const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno == EINTR) continue;
      const int code = errno;
      throw AccessError("-", errno_name(code), fmt::format("cannot read standard input: {}", std::strerror(code)));
    }
  }
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const std::string& url, const TransferOptions& options) {
  if (url == "-") return std::make_unique<StandardInput>();
  if (is_pipe(url)) return std::make_unique<CommandOutput>(url.substr(5), options);
  if (is_http(url)) return std::make_unique<HttpBody>(url, options);
  if (is_s3(url)) return open_s3_stream(url);
  throw Error(Exit::io, fmt::format("cannot read {}: no such scheme", url),
              "use a path, http(s)://, s3://, or a command as pipe:..., for example 'pipe:gsutil cat gs://...'");
}

}  // namespace millrace
