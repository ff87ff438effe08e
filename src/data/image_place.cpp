#include "image_place.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/io/stream.h"
#include "millrace/io/urls.h"

namespace millrace {

namespace {

constexpr std::uint64_t max_image_bytes = 256ull << 20;

bool is_address(std::string_view place) {
  return place.starts_with("http://") || place.starts_with("https://") || place.starts_with("s3://");
}

std::string read_all(ByteStream& stream) {
  std::string bytes;
  std::vector<std::byte> buffer(64 << 10);
  while (const std::size_t got = stream.read(buffer)) {
    bytes.append(reinterpret_cast<const char*>(buffer.data()), got);
    if (bytes.size() > max_image_bytes) fail(Exit::io, "more than {} bytes", max_image_bytes);
  }
  return bytes;
}

std::variant<std::string, NoImage> load_file(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return NoImage{path + ": no such file"};
  const std::uint64_t size = fs::file_size(path, error);
  if (error || size > max_image_bytes) return NoImage{path + ": " + (error ? error.message() : "too large")};
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) return NoImage{path + ": cannot be read"};
  if (bytes.empty()) return NoImage{path + ": empty"};
  return bytes;
}

}  // namespace

std::string resolve_place(std::string_view place, const std::string& list) {
  if (is_address(place)) return std::string(place);
  if (place.starts_with("file:")) place = place.substr(place.starts_with("file://") ? 7 : 5);
  if (place.starts_with('/')) return std::string(place);
  // As text, since a list may lie behind an address.
  return list.substr(0, list.rfind('/') + 1).append(place);
}

std::variant<std::string, NoImage> load_image(const std::string& place) try {
  // Anything else is a path: what a list says must not be run as a command.
  if (!is_address(place)) return load_file(place);
  std::string bytes = read_all(*open_stream(place, {.retries = 2, .time_limit = std::chrono::seconds(60)}));
  if (bytes.empty()) return NoImage{place + ": empty"};
  return bytes;
} catch (const Error& error) {
  return NoImage{error.what()};
}

}  // namespace millrace
