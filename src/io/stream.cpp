#include "millrace/io/stream.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

#include "http_body.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/urls.h"
#include "s3.h"

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

class CommandOutput : public ByteStream {
 public:
  explicit CommandOutput(std::string command) : command_(std::move(command)), pipe_(::popen(command_.c_str(), "re")) {
    if (!pipe_) fail_errno("cannot start", command_);
  }
  // A reader that stops early closes the pipe; what the command then says is of no interest.
  ~CommandOutput() override {
    if (pipe_) ::pclose(pipe_);
  }
  std::size_t read(std::span<std::byte> buffer) override {
    if (!pipe_) return 0;
    const std::size_t got = read_descriptor(::fileno(pipe_), buffer, command_);
    if (got == 0) check_exit(::pclose(std::exchange(pipe_, nullptr)));
    return got;
  }

 private:
  void check_exit(int status) const {
    const bool stopped_by_us = WIFSIGNALED(status) ? WTERMSIG(status) == SIGPIPE : WEXITSTATUS(status) == 128 + SIGPIPE;
    if (status != 0 && !stopped_by_us) fail(Exit::io, "'{}' ended with status {}", command_, WEXITSTATUS(status));
  }

  std::string command_;
  FILE* pipe_;
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const std::string& url, const TransferOptions& options) {
  if (url == "-") return std::make_unique<StandardInput>();
  if (is_pipe(url)) return std::make_unique<CommandOutput>(url.substr(5));
  if (is_http(url)) return std::make_unique<HttpBody>(url, options);
  if (is_s3(url)) return open_s3_stream(url);
  throw Error(Exit::io, fmt::format("cannot read {}: no such scheme", url),
              "use a path, http(s)://, s3://, or a command as pipe:..., for example 'pipe:gsutil cat gs://...'");
}

}  // namespace millrace
