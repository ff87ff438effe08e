#include <fmt/format.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "millrace/io/tar.h"
#include "tar_blocks.h"

namespace millrace {

namespace {

// A member of no sample and without bytes. libarchive is strict with the first header of a tar, and lenient with what
// programs of all kinds write into those behind it.
std::string harmless_header() {
  std::string block(tar_block_bytes, '\0');
  const auto put = [&](std::size_t place, std::string_view text) { block.replace(place, text.size(), text); };
  put(0, "__first__");
  put(100, "0000644");  // mode, user, group, bytes and time in octal digits
  put(108, "0000000");
  put(116, "0000000");
  put(124, "00000000000");
  put(136, "00000000000");
  put(148, "        ");  // the sum of all bytes counts its own place as blanks
  put(156, "0");         // a regular file
  put(257, "ustar");
  put(263, "00");
  unsigned sum = 0;
  for (const char byte : block) sum += static_cast<unsigned char>(byte);
  put(148, fmt::format("{:06o}", sum));
  block[154] = '\0';
  return block;
}

// A tar, from memory.
class TarBytes final : public ByteStream {
 public:
  explicit TarBytes(std::string bytes) : bytes_(std::move(bytes)) {}

  std::size_t read(std::span<std::byte> buffer) override {
    const std::size_t size = bytes_.copy(reinterpret_cast<char*>(buffer.data()), buffer.size(), position_);
    position_ += size;
    return size;
  }

 private:
  std::string bytes_;
  std::size_t position_ = 0;
};

}  // namespace

std::optional<TarSample> read_tar_sample(const InputFile& file, std::uint64_t begin, std::uint64_t end,
                                         TarOptions options) {
  std::string tar = harmless_header();
  tar.resize(tar_block_bytes + (end - begin) + 2 * tar_block_bytes, '\0');  // two empty ones end a tar
  const auto place = std::as_writable_bytes(std::span(tar)).subspan(tar_block_bytes, end - begin);
  if (place.size() - file.read_at(begin, place) >= tar_block_bytes) return std::nullopt;
  TarReader reader(std::make_unique<TarBytes>(std::move(tar)), file.path(), std::move(options));
  auto sample = reader.next();
  return reader.skip_one() ? std::nullopt : std::move(sample);
}

}  // namespace millrace
