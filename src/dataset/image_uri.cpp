#include "millrace/dataset/image_uri.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"
#include "millrace/io/input_file.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

bool is_address(std::string_view uri) {
  return is_http(uri) || is_s3(uri);
}

// BUCKET/KEY, as Arrow takes it: asked for anything else, it fails as where the store is away. A bucket becomes a part
// of a host's name.
bool names_an_object(std::string_view address) {
  const auto path = address.substr(std::string_view("s3://").size());
  const auto bucket = path.substr(0, path.find('/'));
  const auto is_of_a_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_'; };
  return !bucket.empty() && bucket.size() < path.size() && std::ranges::all_of(bucket, is_of_a_name) &&
         !path.ends_with('/') && path.find("//") == path.npos;
}

LoadFailure missing(const std::string& uri, const std::string& why) {
  return {RejectReason::missing_image, uri + ": " + why};
}

LoadFailure too_large(const std::string& uri, std::uint64_t max_bytes) {
  return {RejectReason::too_large, fmt::format("{}: more than {} bytes", uri, max_bytes)};
}

// The row's fault, or the storage's.
LoadFailure missing_file(const std::string& path, const std::string& why, const std::string& message,
                         const LastFiles* last) {
  if (last && last->are_gone())
    throw StorageError(path, why, fmt::format("{}, and what was read before is gone, too", message));
  return {RejectReason::missing_image, message};
}

std::variant<std::string, LoadFailure> load_file(const std::string& path, std::uint64_t max_bytes, LastFiles* last) {
  std::error_code error;
  const bool regular = fs::is_regular_file(path, error);
  check_storage(error, path);
  if (!regular) return missing_file(path, "no such file", path + ": no such file", last);
  const InputFile file(path);
  const std::uint64_t size = file.size();
  if (size == 0) return missing(path, "empty");
  if (size > max_bytes) return too_large(path, max_bytes);
  std::string bytes(size, '\0');
  if (file.read_at(0, std::as_writable_bytes(std::span(bytes))) < size) return missing(path, "cannot be read");
  if (last) last->remember(path);
  return bytes;
}

std::variant<std::string, LoadFailure> load_address(const std::string& address, std::uint64_t max_bytes) {
  if (is_s3(address) && !names_an_object(address)) return missing(address, "names no object in a bucket");
  const auto stream = open_stream(address, {.retries = 2, .time_limit = std::chrono::seconds(60)});
  std::string bytes;
  std::vector<std::byte> buffer(64 << 10);
  while (const std::size_t got = stream->read(buffer)) {
    bytes.append(reinterpret_cast<const char*>(buffer.data()), got);
    if (bytes.size() > max_bytes) return too_large(address, max_bytes);
  }
  if (bytes.empty()) return missing(address, "empty");
  return bytes;
}

}  // namespace

void LastFiles::remember(const std::string& path) {
  constexpr std::size_t most = 3;
  const auto folder_of = [](std::string_view file) { return file.substr(0, file.rfind('/')); };
  const std::lock_guard lock(mutex_);
  if (!paths_.empty() && folder_of(paths_.front()) == folder_of(path)) {
    paths_.front() = path;
    return;
  }
  std::erase_if(paths_, [&](const std::string& other) { return folder_of(other) == folder_of(path); });
  paths_.push_front(path);
  if (paths_.size() > most) paths_.pop_back();
}

bool LastFiles::are_gone() const {
  std::deque<std::string> paths;
  {
    const std::lock_guard lock(mutex_);
    paths = paths_;
  }
  return !paths.empty() &&
         std::ranges::none_of(paths, [](const std::string& path) { return ::access(path.c_str(), R_OK) == 0; });
}

std::string resolve_uri(std::string_view uri, const std::string& list) {
  if (is_address(trim(uri))) return std::string(trim(uri));
  if (uri.starts_with("file:")) uri = uri.substr(uri.starts_with("file://") ? 7 : 5);
  if (uri.starts_with('/')) return std::string(uri);
  // As text, since a list may lie behind an address.
  const std::string path = local_path(list), &base = path.empty() ? list : path;
  return base.substr(0, base.rfind('/') + 1).append(uri);
}

std::variant<std::string, LoadFailure> load_image(const std::string& uri, std::uint64_t max_bytes,
                                                  LastFiles* last) try {
  // Anything else is a path: what a list says must not be run as a command.
  return is_address(uri) ? load_address(uri, max_bytes) : load_file(uri, max_bytes, last);
} catch (const RefusedError& error) {
  // A file may be closed to this user, and an object not for us; a ticket that has run out closes all files, and is
  // renewed.
  if (is_address(uri)) return LoadFailure{RejectReason::missing_image, error.what()};
  if (error.why() != "EACCES" && error.why() != "EPERM") throw;
  return missing_file(uri, error.why(), error.what(), last);
} catch (const StorageError& error) {
  // A list of the web names hosts that are gone for good: each would end the run.
  if (!is_http(uri)) throw;
  return LoadFailure{RejectReason::missing_image, error.what()};
} catch (const Error& error) {
  if (error.exit() != Exit::io) throw;
  return LoadFailure{RejectReason::missing_image, error.what()};
}

}  // namespace millrace
