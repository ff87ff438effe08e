#include "net/s3.h"

#include <arrow/buffer.h>
#include <arrow/filesystem/s3fs.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <arrow/status.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "millrace/core/log.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/net/http.h"
#include "net/proxy.h"

namespace millrace {

namespace {

bool is_missing(const arrow::Status& status) {
  return arrow::internal::ErrnoFromStatus(status) == ENOENT;
}

// Bytes of one request: an object store answers after tens of milliseconds, however little is asked for.
constexpr std::int64_t request_bytes = 8 << 20;

void check(const arrow::Status& status, const std::string& url) {
  if (!status.ok()) fail_s3(status, url);
}

template <class T>
T check(arrow::Result<T> result, const std::string& url) {
  check(result.status(), url);
  return std::move(result).ValueUnsafe();
}

// BUCKET/KEY, as Arrow calls an object.
std::string object_path(const std::string& url) {
  return url.substr(std::string_view("s3://").size());
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// A store of one's own (MinIO, Ceph...) is an address that the AWS tools know too.
void set_endpoint(arrow::fs::S3Options& options, const std::string& endpoint) {
  const std::size_t scheme = endpoint.find("://");
  if (scheme != endpoint.npos) options.scheme = endpoint.substr(0, scheme);
  options.endpoint_override = scheme == endpoint.npos ? endpoint : endpoint.substr(scheme + 3);
  while (options.endpoint_override.ends_with('/')) options.endpoint_override.pop_back();
}

// The AWS library by itself uses none. Those that it cannot use are passed over, as before it was given any.
void set_proxy(arrow::fs::S3Options& options, std::string proxy) {
  if (proxy.find("://") == proxy.npos) proxy.insert(0, "http://");
  const auto parsed = arrow::fs::S3ProxyOptions::FromUri(proxy);
  if (parsed.ok() && (parsed->scheme == "http" || parsed->scheme == "https")) {
    options.proxy_options = *parsed;
  } else {
    log::warning(
        "s3:// takes no proxy of the environment but one of http:// or https:// (%40 for an @ in a password): "
        "the store is asked directly");
  }
}

// Without port and path.
std::string host_in(const std::string& endpoint) {
  if (endpoint.starts_with('[')) return endpoint.substr(1, endpoint.find(']') - 1);
  return endpoint.substr(0, endpoint.find_first_of(":/"));
}

void resolve_region(arrow::fs::S3Options& options, const std::string& bucket) {
  if (const auto region = arrow::fs::ResolveS3BucketRegion(bucket); region.ok()) options.region = *region;
}

arrow::fs::S3Options options_for(const std::string& bucket) {
  auto options = arrow::fs::S3Options::Defaults();
  options.connect_timeout = 10;
  options.request_timeout = 60;
  options.retry_strategy = arrow::fs::S3RetryStrategy::GetAwsStandardRetryStrategy(6);
  options.region = environment("AWS_REGION");
  if (options.region.empty()) options.region = environment("AWS_DEFAULT_REGION");
  std::string endpoint = environment("AWS_ENDPOINT_URL_S3");
  if (endpoint.empty()) endpoint = environment("AWS_ENDPOINT_URL");
  if (!endpoint.empty()) set_endpoint(options, endpoint);
  // A bucket's own region counts, wherever this machine is; but it is not asked for through a proxy.
  const bool is_given = !options.region.empty();
  if (endpoint.empty() && !is_given) resolve_region(options, bucket);
  const std::string host = endpoint.empty() ? fmt::format("{}.s3.{}.amazonaws.com", bucket, options.region)
                                            : host_in(options.endpoint_override);
  const std::string proxy = find_proxy(options.scheme, host);
  if (!proxy.empty()) set_proxy(options, proxy);
  if (endpoint.empty() && is_given && options.proxy_options.host.empty()) resolve_region(options, bucket);
  return options;
}

constexpr const char* asked_without_key = " (asked without credentials)";

bool is_denied(std::string_view why) {
  return why.find("ACCESS_DENIED") != why.npos;
}

// NOTE [Refused by S3]: an object that a list names may be closed to us, and its row is lost then. The same answer
// comes for all objects where the AWS library finds no key, as while a role's has run out, and asks without one; or
// where the secret or the rights are wrong. So a refusal is an object's own unless the key that there was is gone, or
// too many come in a row: a few before the bucket has given something, since a list may begin with such rows.
class Bucket {
 public:
  explicit Bucket(std::shared_ptr<arrow::fs::S3FileSystem> store) : store_(std::move(store)) {}

  arrow::fs::FileSystem& store() const { return *store_; }

  // What a request gives; of one that was denied, whether it was made with a key is added to the words.
  template <class Request>
  auto ask(Request request) -> decltype(request()) {
    const bool with_key = has_key();
    auto answer = request();
    if (with_key || !is_denied(answer.status().message())) return answer;
    return arrow::Status::IOError(answer.status().message(), asked_without_key);
  }

  void note_given() {
    has_given_ = true;
    refusals_ = 0;
  }

  // The proxy that it is asked through, for people; empty where there is none.
  std::string proxy() const {
    const auto& proxy = store_->options().proxy_options;
    return proxy.host.empty() ? "" : fmt::format("{}:{}", proxy.host, proxy.port);
  }

  // Of a refusal that has just come. What is open to all gives without a key, too.
  bool refuses_for_good(bool asked_with_key) {
    if (!asked_with_key && has_had_key_) return false;
    return ++refusals_ <= (has_given_ ? most_refusals : most_at_first);
  }

 private:
  static constexpr int most_at_first = 16, most_refusals = 1000;

  bool has_key() {
    const bool has_key = !store_->options().GetAccessKey().empty();
    if (has_key) has_had_key_ = true;
    return has_key;
  }

  const std::shared_ptr<arrow::fs::S3FileSystem> store_;
  std::atomic<bool> has_given_ = false, has_had_key_ = false;
  std::atomic<int> refusals_ = 0;  // in a row
};

// One client per bucket, since buckets may lie in different regions.
class S3Buckets {
 public:
  std::shared_ptr<Bucket> bucket_of(const std::string& url) {
    const std::string path = object_path(url), name = path.substr(0, path.find('/'));
    if (name.empty()) fail(Exit::io, "{} names no bucket", url);
    const std::lock_guard lock(mutex_);
    if (buckets_.empty()) initialize(url);
    auto& bucket = buckets_[name];
    if (!bucket) bucket = std::make_shared<Bucket>(check(arrow::fs::S3FileSystem::Make(options_for(name)), url));
    return bucket;
  }

  void close() {
    const std::lock_guard lock(mutex_);
    buckets_.clear();
    if (arrow::fs::IsS3Initialized()) (void)arrow::fs::FinalizeS3();
  }

 private:
  // Arrow's wheel has an OpenSSL of its own, which looks for certificates where Debian and newer Red Hats have them.
  static void initialize(const std::string& url) {
    const std::string bundle = environment("AWS_CA_BUNDLE");
    arrow::fs::FileSystemGlobalOptions everywhere;
    everywhere.tls_ca_file_path = bundle.empty() ? certificates_file() : bundle;
    check(arrow::fs::Initialize(everywhere), url);
    auto options = arrow::fs::S3GlobalOptions::Defaults();
    options.log_level = arrow::fs::S3LogLevel::Off;  // its complaints come back as errors too
    if (!arrow::fs::IsS3Initialized()) check(arrow::fs::InitializeS3(options), url);
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Bucket>> buckets_;
};

S3Buckets& buckets() {
  static S3Buckets buckets;
  return buckets;
}

constexpr const char* short_answer = "the store has sent less than was asked for";

// NOTE [Short answers of S3]: Arrow tells of every answer that it has filled the buffer, also of one that is shorter
// than what was asked for (its reader counts the bytes of the buffer, not of the body); what is behind its end is then
// whatever stood in that memory. So the last byte is watched: what it held before the answer, it may hold behind it by
// chance once, but not after a second answer that found another value there.
class S3Object final : public arrow::io::RandomAccessFile {
 public:
  S3Object(std::shared_ptr<Bucket> bucket, std::shared_ptr<arrow::io::RandomAccessFile> file)
      : bucket_(std::move(bucket)), file_(std::move(file)) {
    set_mode(arrow::io::FileMode::READ);
  }

  arrow::Status Close() override { return file_->Close(); }
  bool closed() const override { return file_->closed(); }
  arrow::Result<std::int64_t> Tell() const override { return position_; }
  arrow::Status Seek(std::int64_t position) override {
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> GetSize() override { return file_->GetSize(); }
  arrow::Result<std::shared_ptr<const arrow::KeyValueMetadata>> ReadMetadata() override {
    return file_->ReadMetadata();
  }
  arrow::Result<std::int64_t> Read(std::int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t read, ReadAt(position_, bytes, out));
    position_ += read;
    return read;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, bytes));
    position_ += buffer->size();
    return buffer;
  }
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t wanted, bytes_there(position, bytes));
    if (wanted == 0) return 0;
    auto& last = static_cast<std::uint8_t*>(out)[wanted - 1];
    for (const std::uint8_t before : {0xa7, 0x58}) {
      last = before;
      ARROW_ASSIGN_OR_RAISE(const std::int64_t read,
                            bucket_->ask([&] { return file_->ReadAt(position, wanted, out); }));
      bucket_->note_given();
      if (read == wanted && last != before) return read;
    }
    return arrow::Status::IOError(short_answer);
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position, std::int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t wanted, bytes_there(position, bytes));
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, arrow::AllocateBuffer(wanted));
    ARROW_RETURN_NOT_OK(ReadAt(position, wanted, buffer->mutable_data()));
    return buffer;
  }

 private:
  // Of `bytes` from `position` on.
  arrow::Result<std::int64_t> bytes_there(std::int64_t position, std::int64_t bytes) {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t size, GetSize());
    return std::clamp<std::int64_t>(size - position, 0, std::max<std::int64_t>(bytes, 0));
  }

  const std::shared_ptr<Bucket> bucket_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::int64_t position_ = 0;
};

// Its size, and what the store calls its content.
std::string version_of(arrow::io::RandomAccessFile& file, const std::string& url) {
  const auto metadata = check(file.ReadMetadata(), url);
  return fmt::format("{} {}", check(file.GetSize(), url), metadata ? metadata->Get("ETag").ValueOr("") : "");
}

// An object from front to back, in requests that are large enough; Arrow repeats those that fail.
class S3Body final : public ByteStream {
 public:
  explicit S3Body(std::string url) : url_(std::move(url)) {}

  std::size_t read(std::span<std::byte> buffer) override {
    if (!file_) file_ = open_s3_file(url_);
    if (!block_ || taken_ == static_cast<std::size_t>(block_->size())) fetch();
    const std::size_t count = std::min(buffer.size(), static_cast<std::size_t>(block_->size()) - taken_);
    std::memcpy(buffer.data(), block_->data() + taken_, count);
    taken_ += count;
    return count;
  }

  // Several requests may have been answered out of different objects.
  void finish() override {
    if (requests_ > 1 && was_replaced())
      log::warning("{} was replaced while it was read: what was read may be of both objects", url_);
  }

 private:
  void fetch() {
    block_ = check(file_->Read(request_bytes), url_);
    taken_ = 0;
    if (block_->size() > 0) ++requests_;
  }

  // Some stores give each answer another ETag: only a new one that is told twice is one.
  bool was_replaced() const try {
    const auto before = version_of(*file_, url_), now = version_of(*open_s3_file(url_), url_);
    return now != before && now == version_of(*open_s3_file(url_), url_);
  } catch (const Error&) {  // all was read
    return false;
  }

  const std::string url_;
  std::shared_ptr<arrow::io::RandomAccessFile> file_;
  std::shared_ptr<arrow::Buffer> block_;
  std::size_t taken_ = 0;
  int requests_ = 0;
};

constexpr const char* hint_on_access =
    "credentials are taken from the environment, ~/.aws/credentials (AWS_PROFILE chooses), credential_process, the "
    "container or the machine's role; AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL names another store";
constexpr const char* hint_on_no_key =
    "`aws configure export-credentials --format env` prints what the AWS tools would take, for the environment; of "
    "~/.aws/config keys, roles (role_arn) and sso are not read";

constexpr const char* hint_on_certificates =
    "the store's certificate is of no authority known here: AWS_CA_BUNDLE or SSL_CERT_FILE names a file of those that "
    "are trusted";

// CURLE_PEER_FAILED_VERIFICATION and CURLE_SSL_CACERT_BADFILE.
bool tells_of_certificates(std::string_view why) {
  return why.find("curlCode: 60") != why.npos || why.find("curlCode: 77") != why.npos;
}

// By a code of S3's own that Arrow has no word for: an object that lies in an archive (InvalidObjectState). The AWS
// library's own failures have codes up to 128.
bool is_answer_of_s3_alone(std::string_view why) {
  constexpr std::string_view mark = "AWS Error [code ";
  const auto at = why.find(mark);
  int code = 0;
  if (at != why.npos) std::from_chars(why.data() + at + mark.size(), why.data() + why.size(), code);
  return code > 128;
}

}  // namespace

// Arrow keeps of a failure no more than the words that the AWS library has for it.
bool is_of_s3(const arrow::Status& status) {
  const std::string& why = status.message();
  return is_missing(status) || why.find("AWS Error ") != why.npos || why.find(short_answer) != why.npos;
}

bool is_final_answer(std::string_view why) {
  constexpr std::string_view answered = "(HTTP status ";
  if (is_denied(why)) return true;
  const auto at = why.rfind(answered);
  if (at == why.npos) return is_answer_of_s3_alone(why);
  const auto http_status = why.substr(at + answered.size(), 3);
  return http_status.starts_with('4') && http_status != "400" && http_status != "407" && http_status != "408" &&
         http_status != "429";
}

void fail_s3(const arrow::Status& status, const std::string& url) {
  std::string why = status.message(), hint = tells_of_certificates(why) ? hint_on_certificates : hint_on_access;
  bool is_final = false;
  if (is_final_answer(why)) {
    const auto bucket = buckets().bucket_of(url);
    const bool asked_with_key = why.find(asked_without_key) == why.npos;
    is_final = bucket->refuses_for_good(asked_with_key);
    if (is_denied(why) && !asked_with_key) {
      const std::string profile = environment("AWS_PROFILE");
      why += fmt::format(" No credentials are found{}, so it was asked without any.",
                         profile.empty() ? "" : fmt::format(" (AWS_PROFILE={})", profile));
      hint = hint_on_no_key;
    }
    if (const auto proxy = bucket->proxy(); !proxy.empty())
      hint += fmt::format(
          "; it was asked through {}, a proxy of the environment: no_proxy names what is asked directly", proxy);
  }
  const std::string message = fmt::format("{}: {}", url, why);
  if (is_missing(status)) throw AccessError(url, why, message, hint);
  if (is_final) throw RefusedError(url, why, message, hint);
  throw StorageError(url, why, message, hint);
}

std::shared_ptr<arrow::io::RandomAccessFile> open_s3_file(const std::string& url) {
  const auto bucket = buckets().bucket_of(url);
  auto file = check(bucket->ask([&] { return bucket->store().OpenInputFile(object_path(url)); }), url);
  return std::make_shared<S3Object>(bucket, std::move(file));
}

std::unique_ptr<ByteStream> open_s3_stream(const std::string& url) {
  return std::make_unique<S3Body>(url);
}

std::vector<std::string> list_s3_folder(const std::string& url) {
  arrow::fs::FileSelector selector;
  selector.base_dir = object_path(url);
  while (selector.base_dir.ends_with('/')) selector.base_dir.pop_back();
  std::vector<std::string> names;
  const auto bucket = buckets().bucket_of(url);
  for (const auto& info : check(bucket->ask([&] { return bucket->store().GetFileInfo(selector); }), url)) {
    if (info.IsFile()) names.push_back(info.base_name());
  }
  return names;
}

void close_s3() {
  buckets().close();
}

}  // namespace millrace
