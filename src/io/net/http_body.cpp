#include "net/http_body.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"

namespace millrace {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds max_wait{16'000}, max_asked_wait{120'000};
constexpr std::uint64_t recovered_bytes = 1 << 20;
constexpr int poll_ms = 200;
constexpr auto no_count = std::numeric_limits<std::size_t>::max();  // of bytes: curl gives up
constexpr std::chrono::seconds connect_limit{30};

}  // namespace

HttpBody::HttpBody(std::string url, const TransferOptions& options)
    : url_(std::move(url)), options_(options), multi_(open_transfers()) {}

HttpBody::~HttpBody() {
  stop();
  curl_multi_cleanup(multi_);
}

std::size_t HttpBody::read(std::span<std::byte> buffer) {
  last_byte_ = Clock::now();
  while (pending_.size() == taken_ && !done_) wait_for_bytes();
  const std::size_t count = std::min(buffer.size(), pending_.size() - taken_);
  std::memcpy(buffer.data(), pending_.data() + taken_, count);
  taken_ += count;
  return count;
}

void HttpBody::wait_for_bytes() {
  if (options_.time_limit && Clock::now() - begun_ > *options_.time_limit)
    give_up_for_now(fmt::format("not all there after {} s", options_.time_limit->count()));
  if (const auto rest = std::chrono::ceil<milliseconds>(next_attempt_ - Clock::now()); !easy_ && rest.count() > 0) {
    // What has a time limit, as an image of a list, ends soon by itself, and would be lost.
    if (stop::requested() && !options_.time_limit) give_up_for_now("the run is asked to stop");
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(std::min<std::int64_t>(rest.count(), poll_ms)), nullptr);
    return;
  }
  if (!easy_) start();
  pending_.clear();
  taken_ = 0;
  int running = 0, left = 0;
  curl_multi_perform(multi_, &running);
  if (const CURLMsg* const message = curl_multi_info_read(multi_, &left); message && message->msg == CURLMSG_DONE) {
    const auto size = std::max<std::uint64_t>(total_, size_ ? static_cast<std::uint64_t>(*size_) : 0);
    const bool is_short = received_ < size;                       // a part of what was asked for
    if (message->data.result == CURLE_OK) refuse_odd_answer({});  // which may have had no body
    done_ = message->data.result == CURLE_OK && !is_short && odd_answer_.empty();
    if (!done_) retry_or_fail(message->data.result == CURLE_OK ? CURLE_PARTIAL_FILE : message->data.result);
  } else if (pending_.empty()) {
    if (stop::requested() && !options_.time_limit) give_up_for_now("the run is asked to stop");
    if (Clock::now() - last_byte_ > options_.stall_limit) return retry_or_fail(CURLE_OPERATION_TIMEDOUT);
    curl_multi_poll(multi_, nullptr, 0, poll_ms, nullptr);
  }
}

void HttpBody::start() {
  easy_ = open_get(url_, "millrace", connect_limit);
  answered_ = false;
  last_byte_ = Clock::now();
  problem_[0] = '\0';
  const std::string rest = fmt::format("{}-", received_);
  curl_easy_setopt(easy_, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(easy_, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(easy_, CURLOPT_FAILONERROR, 1L);
  if (received_ > 0) curl_easy_setopt(easy_, CURLOPT_RANGE, rest.c_str());
  curl_easy_setopt(easy_, CURLOPT_ERRORBUFFER, problem_);
  curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, &HttpBody::receive_header);
  curl_easy_setopt(easy_, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpBody::receive);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
  curl_multi_add_handle(multi_, easy_);
}

void HttpBody::stop() {
  if (!easy_) return;
  curl_multi_remove_handle(multi_, easy_);
  curl_easy_cleanup(easy_);
  easy_ = nullptr;
}

std::size_t HttpBody::receive_header(char* data, std::size_t size, std::size_t count, void* self) {
  static_cast<HttpBody*>(self)->headers_.take({data, size * count});
  return size * count;
}

std::size_t HttpBody::receive(char* data, std::size_t size, std::size_t count, void* self) {
  auto& body = *static_cast<HttpBody*>(self);
  const std::size_t bytes = size * count;
  body.last_byte_ = Clock::now();
  if (!std::exchange(body.answered_, true) && !body.accept_answer({data, bytes})) return no_count;
  const std::size_t repeated = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, body.to_skip_));
  body.to_skip_ -= repeated;
  body.pending_.append(data + repeated, bytes - repeated);
  body.received_ += bytes - repeated;
  return bytes;
}

// In place of an archive: the page of a login or a portal, or the promise of an answer to come. What an image of a list
// is, its decoder says. `beginning`: of the body; servers may call anything text/html.
void HttpBody::refuse_odd_answer(std::string_view beginning) {
  long status = 0;  // stays 0 without an answer
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  if (options_.time_limit || status == 0 || status >= 400) return;
  if (status != 200 && status != 206) odd_answer_ = fmt::format("it answers with status {}", status);
  const auto text = beginning.find_first_not_of("\xEF\xBB\xBF \t\r\n");
  if (text != beginning.npos && beginning[text] == '<' &&
      headers_.find("content-type").value_or("").starts_with("text/html"))
    odd_answer_ = "it answers with a page";
}

bool HttpBody::accept_answer(std::string_view beginning) {
  refuse_odd_answer(beginning);
  if (!odd_answer_.empty()) return false;
  long status = 0;
  curl_off_t length = -1;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
  const bool is_rest = status == 206;
  unsigned long long first = received_, total = 0;
  if (const auto range = headers_.find("content-range"); is_rest && range)
    std::sscanf(range->c_str(), "bytes %llu-%*u/%llu", &first, &total);
  if (!is_rest) first = 0;  // a server that does not know Range starts again
  if (first > received_) return false;
  to_skip_ = received_ - first;
  if (total > 0) total_ = total;
  if (is_rest && length >= 0)
    length = total > 0 ? static_cast<curl_off_t>(total) : length + static_cast<curl_off_t>(first);
  const std::string tag = headers_.find("etag").value_or("");
  const std::string modified = headers_.find("last-modified").value_or("");
  const std::optional<curl_off_t> size = length < 0 ? std::nullopt : std::optional(length);
  const bool is_first = !tag_;
  if (is_first) tag_ = tag;
  if (is_first) modified_ = modified;
  // Where one of two answers names no size, another sign has to tell. Mirrors of one file have times of their own.
  const bool is_told = !tag.empty() || (!modified.empty() && modified == modified_);
  const bool is_same_size = size == size_ || (is_told && !(size && size_));
  if (!size_) size_ = size;
  return is_first || (tag == tag_ && is_same_size);
}

void HttpBody::retry_or_fail(CURLcode result) {
  long status = 0, status_of_connect = 0;  // a proxy's, of https://
  curl_off_t asked_to_wait = 0;            // Retry-After
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(easy_, CURLINFO_HTTP_CONNECTCODE, &status_of_connect);
  curl_easy_getinfo(easy_, CURLINFO_RETRY_AFTER, &asked_to_wait);
  stop();
  if (!odd_answer_.empty()) give_up_for_now(odd_answer_);
  if (result == CURLE_WRITE_ERROR) give_up_for_now("the file behind it was changed while it was read");
  const std::string why = problem_[0] ? problem_ : curl_easy_strerror(result);
  if (status == 407 || status_of_connect == 407)
    give_up_refused(why, "the proxy asks for a name and a password: http_proxy=http://NAME:PASSWORD@HOST:PORT");
  if (status == 401 || status == 403)
    give_up_refused(why, "the server refuses this address: see to the permissions behind it, or to the token in it");
  if (status == 404 || status == 410 || result == CURLE_URL_MALFORMAT) give_up(why);
  if (!is_transient(result, status)) give_up_for_now(why);
  if (received_ >= received_at_failure_ + recovered_bytes) failures_ = 0;
  received_at_failure_ = received_;
  if (++failures_ > options_.retries) give_up_for_now(fmt::format("{} (attempt {})", why, failures_));
  const milliseconds doubled = std::min(options_.first_wait * (1 << std::min(failures_ - 1, 10)), max_wait);
  const milliseconds asked = std::min<milliseconds>(std::chrono::seconds(asked_to_wait), max_asked_wait);
  next_attempt_ = Clock::now() + std::max(doubled, asked);
  if (options_.time_limit && next_attempt_ - begun_ > *options_.time_limit)
    give_up_for_now(fmt::format("{} (to be asked again after {} s)", why, asked_to_wait));
}

void HttpBody::give_up(const std::string& why) const {
  throw AccessError(url_, why, fmt::format("{}: {} after {} bytes", url_, why, received_),
                    "check the address, and leave what is behind it alone while a run reads it");
}

void HttpBody::give_up_for_now(const std::string& why) const {
  throw StorageError(url_, why, fmt::format("{}: {} after {} bytes", url_, why, received_));
}

void HttpBody::give_up_refused(const std::string& why, const char* hint) const {
  throw RefusedError(url_, why, fmt::format("{}: {} after {} bytes", url_, why, received_), hint);
}

}  // namespace millrace
