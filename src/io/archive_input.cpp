#include "archive_input.h"

#include <cerrno>
#include <utility>

#include "millrace/core/storage_error.h"

namespace millrace {

ArchiveInput::ArchiveInput(const std::string& path) : ArchiveInput(std::make_unique<FileStream>(path)) {}

ArchiveInput::ArchiveInput(std::unique_ptr<FileStream> file) : file_(file.get()), stream_(std::move(file)) {}

ArchiveInput::ArchiveInput(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

int ArchiveInput::open(archive* a) {
  archive_read_set_read_callback(a, &ArchiveInput::read);
  if (size()) archive_read_set_skip_callback(a, &ArchiveInput::skip);
  archive_read_set_callback_data(a, this);
  return archive_read_open1(a);
}

std::optional<std::uint64_t> ArchiveInput::size() const {
  return file_ ? file_->size() : std::nullopt;
}

std::optional<std::uint64_t> ArchiveInput::packed_bytes() const {
  return stream_.is_packed() ? std::optional(stream_.used()) : std::nullopt;
}

void ArchiveInput::check_storage() const {
  if (not_of_bytes_) std::rethrow_exception(not_of_bytes_);
}

void ArchiveInput::finish() {
  if (!failure_ && !damage_) attempt([this] { stream_.finish(); });
}

// Keeps what it fails of.
template <class Call>
void ArchiveInput::attempt(Call call) {
  try {
    call();
  } catch (const GzipError& error) {
    damage_ = error.what();
  } catch (const Error& error) {
    failure_ = error.what();
    if (!is_damage(error)) not_of_bytes_ = std::current_exception();
  } catch (const std::exception& error) {
    failure_ = error.what();
    not_of_bytes_ = std::current_exception();  // memory, say
  }
}

la_ssize_t ArchiveInput::read(archive* a, void* self, const void** data) {
  auto& input = *static_cast<ArchiveInput*>(self);
  *data = input.buffer_.data();
  std::size_t got = 0;
  input.attempt([&] { got = input.stream_.read(input.buffer_); });
  if (!input.failure_ && !input.damage_) return static_cast<la_ssize_t>(got);
  archive_set_error(a, EIO, "%s", (input.failure_ ? input.failure_ : input.damage_)->c_str());
  return -1;
}

la_int64_t ArchiveInput::skip(archive*, void* self, la_int64_t request) {
  const auto& input = *static_cast<ArchiveInput*>(self);
  if (!input.stream_.is_passed_on()) return 0;  // what is not passed over is read
  return static_cast<la_int64_t>(input.file_->skip(static_cast<std::uint64_t>(request)));
}

}  // namespace millrace
