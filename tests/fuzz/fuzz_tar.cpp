#include <algorithm>
#include <cstring>

#include "millrace/io/tar.h"

namespace {

class Memory : public millrace::ByteStream {
 public:
  Memory(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}
  std::size_t read(std::span<std::byte> buffer) override {
    const std::size_t count = std::min(buffer.size(), rest_.size());
    std::memcpy(buffer.data(), rest_.data(), count);
    rest_ = rest_.subspan(count);
    return count;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

// Any bytes give samples and at most one error; reading with and without the members' bytes agree on the count.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::TarReader reader(std::make_unique<Memory>(data, size), "fuzz", {.fields = {}, .max_sample_bytes = 1 << 20});
  std::size_t samples = 0;
  while (reader.next()) ++samples;
  millrace::TarReader headers(std::make_unique<Memory>(data, size), "fuzz");
  if (headers.skip(size) != samples || headers.error().has_value() != reader.error().has_value()) __builtin_trap();
  return 0;
}
