#include "millrace/io/stream.h"

#include <curl/curl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/urls.h"

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

// The body of an HTTP GET, pulled: curl works only while somebody waits for bytes, so memory stays at one receive
// buffer.
class HttpBody : public ByteStream {
 public:
  explicit HttpBody(std::string url) : url_(std::move(url)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    multi_ = curl_multi_init();
    start();
  }
  ~HttpBody() override {
    stop();
    curl_multi_cleanup(multi_);
  }

  std::size_t read(std::span<std::byte> buffer) override {
    while (pending_.size() == taken_ && !done_) wait_for_bytes();
    const std::size_t count = std::min(buffer.size(), pending_.size() - taken_);
    std::memcpy(buffer.data(), pending_.data() + taken_, count);
    taken_ += count;
    return count;
  }

 private:
  static constexpr int max_restarts = 3;

  static std::size_t receive(char* data, std::size_t size, std::size_t count, void* self) {
    auto& body = *static_cast<HttpBody*>(self);
    body.pending_.append(data, size * count);
    body.received_ += size * count;
    return size * count;
  }

  void start() {
    easy_ = curl_easy_init();
    curl_easy_setopt(easy_, CURLOPT_URL, url_.c_str());
    curl_easy_setopt(easy_, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(easy_, CURLOPT_MAXREDIRS, 10L);
    curl_easy_setopt(easy_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy_, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(easy_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy_, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_LIMIT, 1L);  // a server that sends nothing for a minute is gone
    curl_easy_setopt(easy_, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(easy_, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(received_));
    curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, problem_);
    curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpBody::receive);
    curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
    curl_multi_add_handle(multi_, easy_);
  }

  void stop() {
    curl_multi_remove_handle(multi_, easy_);
    curl_easy_cleanup(easy_);
  }

  void wait_for_bytes() {
    pending_.clear();
    taken_ = 0;
    int running = 0;
    curl_multi_perform(multi_, &running);
    int left = 0;
    while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
      if (message->msg == CURLMSG_DONE) finish(message->data.result);
    }
    if (!done_ && pending_.empty()) curl_multi_poll(multi_, nullptr, 0, 1000, nullptr);
  }

  void finish(CURLcode result) {
    done_ = result == CURLE_OK;
    if (done_) return;
    const bool refused = result == CURLE_HTTP_RETURNED_ERROR || result == CURLE_RANGE_ERROR;
    if (refused || ++restarts_ > max_restarts) {
      fail(Exit::io, "{}: {} after {} bytes", url_, problem_[0] ? problem_ : curl_easy_strerror(result), received_);
    }
    stop();
    start();
  }

  std::string url_;
  CURLM* multi_ = nullptr;
  CURL* easy_ = nullptr;
  std::string pending_;  // received, of which `taken_` bytes have been handed out
  std::size_t taken_ = 0;
  std::uint64_t received_ = 0;  // over all attempts
  int restarts_ = 0;
  bool done_ = false;
  char problem_[CURL_ERROR_SIZE] = "";
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const std::string& url) {
  if (url == "-") return std::make_unique<StandardInput>();
  if (is_pipe(url)) return std::make_unique<CommandOutput>(url.substr(5));
  if (url.starts_with("http://") || url.starts_with("https://")) return std::make_unique<HttpBody>(url);
  throw Error(Exit::io, fmt::format("cannot read {}: no such scheme", url),
              "use a path, http(s)://, or a command as pipe:..., for example 'pipe:aws s3 cp s3://... -'");
}

}  // namespace millrace
