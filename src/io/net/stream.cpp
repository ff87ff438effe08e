#include "millrace/io/net/stream.h"

#include <unistd.h>

#include <cerrno>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/net/urls.h"
#include "net/command_output.h"
#include "net/http_body.h"
#include "net/s3.h"

namespace millrace {

namespace {

std::size_t read_descriptor(int fd, std::span<std::byte> buffer, const std::string& name) {
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail_errno("cannot read", name);
  }
}

class StandardInput : public ByteStream {
 public:
  std::size_t read(std::span<std::byte> buffer) override {
    return read_descriptor(STDIN_FILENO, buffer, "standard input");
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
