#pragma once
#include <curl/curl.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "millrace/io/net/http.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// The body of an HTTP GET, pulled: curl works only while somebody waits for bytes, so memory stays at one receive
// buffer, and a reader that pauses is no stall.
class HttpBody final : public ByteStream {
 public:
  HttpBody(std::string url, const TransferOptions& options);
  ~HttpBody() override;

  std::size_t read(std::span<std::byte> buffer) override;

 private:
  using Clock = std::chrono::steady_clock;

  static std::size_t receive(char* data, std::size_t size, std::size_t count, void* self);
  static std::size_t receive_header(char* data, std::size_t size, std::size_t count, void* self);
  void refuse_odd_answer(std::string_view beginning);
  // Looks at the head of an answer; false when it is none, or belongs to other content than before.
  bool accept_answer(std::string_view beginning);

  void start();
  void stop();
  void wait_for_bytes();
  void retry_or_fail(CURLcode result);
  [[noreturn]] void give_up(const std::string& why) const;
  [[noreturn]] void give_up_for_now(const std::string& why) const;                    // it may go better later
  [[noreturn]] void give_up_refused(const std::string& why, const char* hint) const;  // and when access is granted

  const std::string url_;
  const TransferOptions options_;
  CURLM* const multi_;
  CURL* easy_ = nullptr;  // null between two attempts
  char problem_[CURL_ERROR_SIZE] = "";

  AnswerHeaders headers_;

  std::string pending_;  // received, of which `taken_` bytes have been handed out
  std::size_t taken_ = 0;
  std::uint64_t received_ = 0;  // of the body, over all attempts
  bool done_ = false;

  bool answered_ = false;      // the attempt at hand has brought bytes
  std::uint64_t to_skip_ = 0;  // bytes that an answer without regard to Range repeats
  // What tells this content from another. An answer in chunks names no size, though its rest may have one: the tag
  // must do there.
  std::optional<std::string> tag_;
  std::string modified_;
  std::optional<curl_off_t> size_;
  std::uint64_t total_ = 0;  // by Content-Range; 0 = unknown

  std::string odd_answer_;  // why what has come is not what was asked for

  int failures_ = 0;  // in a row
  std::uint64_t received_at_failure_ = 0;
  const Clock::time_point begun_ = Clock::now();
  Clock::time_point last_byte_, next_attempt_;
};

}  // namespace millrace
