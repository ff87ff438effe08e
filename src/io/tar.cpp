#include "millrace/io/tar.h"

#include <archive_entry.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "archive_handle.h"
#include "archive_input.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/io/net/urls.h"
#include "tar_blocks.h"
#include "tar_names.h"
#include "thread_locale.h"

namespace millrace {

namespace {

constexpr std::size_t max_fields = 1000;                  // of a sample
constexpr std::uint64_t most_bytes_of_empty_tar = 10240;  // a record of zeros

struct Member {
  MemberName name;
  std::uint64_t bytes = 0;
  std::uint64_t begin = 0;  // of its header
};

// libarchive's warnings are about attributes that nobody reads here; a header to be "retried" is a damaged one.
bool is_usable(int result) {
  return result == ARCHIVE_OK || result == ARCHIVE_WARN;
}

std::uint64_t end_of_block(std::uint64_t byte) {
  return (byte + tar_block_bytes - 1) / tar_block_bytes * tar_block_bytes;
}

// Archives are read again in each pass, and what is odd about them is told once.
bool is_first_word_about(const std::string& archive) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  return told.insert(archive).second;
}

bool has_field(const TarSample& sample, const std::string& field) {
  return std::any_of(sample.fields.begin(), sample.fields.end(), [&](const auto& f) { return f.first == field; });
}

}  // namespace

class TarReader::Impl {
 public:
  Impl(const std::string& url, TarOptions options) : Impl(open_input(url), url, std::move(options)) {}

  Impl(std::unique_ptr<ByteStream> stream, std::string name, TarOptions options)
      : Impl(std::make_unique<ArchiveInput>(std::move(stream)), std::move(name), std::move(options)) {
    is_part_ = true;
  }

  // Gathers one sample; without `want_bytes` its members are passed over.
  std::optional<TarSample> gather(bool want_bytes) {
    const ThreadLocale as_they_are(locale_for_reading_names());
    if (!pending_) advance();
    if (!pending_) return std::nullopt;
    TarSample sample{.key = pending_->name.key, .fields = {}, .begin = pending_->begin};
    std::uint64_t room = options_.max_sample_bytes;
    while (pending_ && pending_->name.key == sample.key && !has_field(sample, pending_->name.field)) {
      const bool wanted = want_bytes && is_wanted(pending_->name.field), fits = pending_->bytes <= room;
      auto bytes = take_member(wanted && fits);
      if (!bytes) return std::nullopt;  // half a sample
      room -= bytes->size();
      const bool is_kept = sample.fields.size() < max_fields;
      sample.oversized |= (wanted && !fits) || !is_kept;
      if (is_kept) sample.fields.emplace_back(std::move(pending_->name.field), std::move(*bytes));
      sample.end = member_end_;
      advance();
    }
    if (error_ && !has_end_mark_ && !seems_complete(sample)) return std::nullopt;
    remember_fields(sample);
    return sample;
  }

  const std::optional<BrokenArchive>& error() const { return error_; }
  std::uint64_t unread_bytes() const { return unread_bytes_; }

 private:
  Impl(std::unique_ptr<ArchiveInput> input, std::string name, TarOptions options)
      : name_(std::move(name)), options_(std::move(options)), input_(std::move(input)), archive_(archive_read_new()) {
    archive_read_support_format_tar(archive_.get());
    archive_read_support_filter_gzip(archive_.get());  // within another filter
    archive_read_support_filter_bzip2(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_filter_zstd(archive_.get());
    if (!is_usable(input_->open(archive_.get()))) set_broken(words_for_error(archive_.get()));
    // Where members lie in the file as they are, a skipped one costs a seek, and its end can be checked beforehand.
    const bool is_plain = archive_filter_code(archive_.get(), 0) == ARCHIVE_FILTER_NONE && !input_->packed_bytes();
    (is_plain ? plain_bytes_ : compressed_bytes_) = input_->size();
  }

  static std::unique_ptr<ArchiveInput> open_input(const std::string& url) {
    const std::string path = local_path(url);
    return path.empty() ? std::make_unique<ArchiveInput>(open_stream(url)) : std::make_unique<ArchiveInput>(path);
  }

  // Moves to the next member that belongs to a sample; none is pending at the end or when the archive is broken.
  void advance() {
    pending_.reset();
    while (!error_ && !has_end_mark_) {
      archive_entry* const entry = next_entry();
      if (!entry) return;
      const char* const path = archive_entry_pathname(entry);
      const bool regular = archive_entry_filetype(entry) == AE_IFREG && !archive_entry_hardlink(entry);
      auto name = path ? try_member_name(path) : std::nullopt;
      links_ += name && (archive_entry_hardlink(entry) || archive_entry_filetype(entry) == AE_IFLNK);
      if (name && regular) {
        pending_ = Member{std::move(*name), entry_bytes_, entry_begin_};
        return;
      }
      take_member(false);
    }
  }

  archive_entry* next_entry() {
    archive* const a = archive_.get();
    const bool is_behind_member = !in_member_ || is_usable(archive_read_data_skip(a));
    const auto end_of_member = archive_filter_bytes(a, 0);
    archive_entry* entry = nullptr;
    const int result = is_behind_member ? archive_read_next_header(a, &entry) : ARCHIVE_FATAL;
    if (result == ARCHIVE_EOF) {
      input_->check_storage();
      // The end mark is a block of zeros; a file cut between two members ends without one.
      archive_filter_bytes(a, 0) == end_of_member ? set_broken("no end mark, the archive was cut short")
                                                  : end_archive();
      return nullptr;
    }
    if (!is_usable(result)) {
      set_broken(words_for_error(a));
      return nullptr;
    }
    in_member_ = has_members_ = true;
    entry_begin_ = static_cast<std::uint64_t>(archive_read_header_position(a));
    entry_bytes_ = static_cast<std::uint64_t>(std::max<la_int64_t>(archive_entry_size(entry), 0));
    stored_as_is_ = archive_entry_sparse_count(entry) == 0;
    return entry;
  }

  // The bytes of the member at hand, none where they are not wanted and it is passed over; nothing when it is not all
  // there.
  std::optional<std::string> take_member(bool want_bytes) {
    std::string bytes;
    member_end_ = 0;
    if (plain_bytes_ && stored_as_is_) {
      const auto start = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
      if (entry_bytes_ > *plain_bytes_ || start > *plain_bytes_ - entry_bytes_) {
        set_broken("cut short within a member");
        return std::nullopt;
      }
      member_end_ = end_of_block(start + entry_bytes_);
      if (!want_bytes) return bytes;
    }
    const void* block = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    std::uint64_t received = 0;
    int result = ARCHIVE_OK;
    while (is_usable(result = archive_read_data_block(archive_.get(), &block, &size, &offset))) {
      received = static_cast<std::uint64_t>(offset) + size;
      if (!want_bytes) continue;
      if (offset < 0 || received > entry_bytes_) {
        set_broken("a block outside its member");
        return std::nullopt;
      }
      bytes.resize(static_cast<std::size_t>(offset), '\0');  // holes of a sparse member are zeros
      bytes.append(static_cast<const char*>(block), size);
    }
    if (result != ARCHIVE_EOF) set_broken(words_for_error(archive_.get()));
    // Cut within the zeros that fill up the last block: the archive is broken, this member is whole.
    const bool whole = result == ARCHIVE_EOF || received == entry_bytes_;
    if (!whole) return std::nullopt;
    if (want_bytes) bytes.resize(entry_bytes_, '\0');
    if (plain_bytes_ && member_end_ == 0)  // of a sparse member, whose size says nothing about it
      member_end_ = end_of_block(static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0)));
    return bytes;
  }

  bool is_wanted(const std::string& field) const {
    const auto& fields = options_.fields;
    return fields.empty() || std::find(fields.begin(), fields.end(), field) != fields.end();
  }

  // Nothing in a tar says how many members a sample has. Where an archive breaks after complete members, they are a
  // sample when they have all the fields of the sample before; else more was to come and they are the half sample.
  bool seems_complete(const TarSample& sample) const {
    return !fields_before_.empty() && std::all_of(fields_before_.begin(), fields_before_.end(),
                                                  [&](const std::string& field) { return has_field(sample, field); });
  }

  void remember_fields(const TarSample& sample) {
    fields_before_.clear();
    for (const auto& [field, bytes] : sample.fields) fields_before_.push_back(field);
  }

  void end_archive() {
    if (!has_members_ && plain_bytes_.value_or(0) > most_bytes_of_empty_tar)
      return set_broken("no member before its end mark; was the file written whole?");
    has_end_mark_ = true;
    input_->finish();
    input_->check_storage();
    if (input_->failure()) error_ = BrokenArchive{fmt::format("{}, after the end of the archive", *input_->failure())};
    if (input_->damage())
      error_ = BrokenArchive{fmt::format("{}: {}, after the end of the archive", name_, *input_->damage())};
    look_behind_end();
    if (links_ > 0 && !is_part_ && is_first_word_about(name_))
      log::warning("{}: {} members are links, which are not followed: make it by tar --dereference --hard-dereference",
                   name_, links_);
  }

  // Archives put together by cat: only the first is one. Some tars end in more zeros than the mark has.
  void look_behind_end() {
    constexpr std::uint64_t look = 1 << 20;
    if (!plain_bytes_) return look_behind_compressed(look);
    const auto end = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
    if (end >= *plain_bytes_) return;
    std::vector<std::byte> bytes(std::min(look, *plain_bytes_ - end));
    bytes.resize(input_->read_at(end, bytes));
    const bool are_zeros = std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
    if (!are_zeros) tell_unread(*plain_bytes_ - end);
  }

  // What unpacks reads a little ahead.
  void look_behind_compressed(std::uint64_t look) {
    if (!compressed_bytes_) return;
    const auto taken = static_cast<std::uint64_t>(std::max<la_int64_t>(archive_filter_bytes(archive_.get(), -1), 0));
    const std::uint64_t end = input_->packed_bytes().value_or(taken);
    if (end == 0 || end + look >= *compressed_bytes_) return;
    tell_unread(*compressed_bytes_ - end);
  }

  void tell_unread(std::uint64_t bytes) {
    unread_bytes_ = bytes;
    if (is_first_word_about(name_))
      log::warning("{}: {} bytes behind the archive's end mark are not read", name_, bytes);
  }

  void set_broken(const char* why) {
    input_->check_storage();
    const auto at = std::max<la_int64_t>(archive_filter_bytes(archive_.get(), 0), 0);
    if (input_->damage()) why = input_->damage()->c_str();
    if (input_->failure()) why = input_->failure()->c_str();
    error_ = BrokenArchive{fmt::format("{}: broken near byte {} of the tar: {}", name_, at, why),
                           input_->failure().value_or("")};
  }

  std::string name_;
  TarOptions options_;
  std::unique_ptr<ArchiveInput> input_;  // feeds the archive, so it outlives it
  ArchiveHandle archive_;
  std::optional<std::uint64_t> plain_bytes_, compressed_bytes_;  // of a file the one or the other, of a stream none

  std::optional<Member> pending_;  // header read, bytes not yet
  bool in_member_ = false;         // libarchive stands within a member
  std::uint64_t entry_begin_ = 0, entry_bytes_ = 0;
  std::uint64_t member_end_ = 0;  // of the member last passed, padding included; 0 = unknown, as in a stream
  bool stored_as_is_ = true;      // not sparse
  bool has_end_mark_ = false, has_members_ = false;
  bool is_part_ = false;     // of an archive that others read, too
  std::uint64_t links_ = 0;  // that are called as members of samples are
  std::uint64_t unread_bytes_ = 0;
  std::vector<std::string> fields_before_;  // of the last complete sample
  std::optional<BrokenArchive> error_;
};

TarReader::TarReader(const std::string& url, TarOptions options)
    : impl_(std::make_unique<Impl>(url, std::move(options))) {}
TarReader::TarReader(std::unique_ptr<ByteStream> stream, std::string name, TarOptions options)
    : impl_(std::make_unique<Impl>(std::move(stream), std::move(name), std::move(options))) {}
TarReader::~TarReader() = default;
TarReader::TarReader(TarReader&&) noexcept = default;
TarReader& TarReader::operator=(TarReader&&) noexcept = default;

std::optional<TarSample> TarReader::next() {
  return impl_->gather(true);
}

std::uint64_t TarReader::skip(std::uint64_t samples) {
  std::uint64_t skipped = 0;
  while (skipped < samples && impl_->gather(false)) ++skipped;
  return skipped;
}

std::optional<TarSample> TarReader::skip_one() {
  return impl_->gather(false);
}

const std::optional<BrokenArchive>& TarReader::error() const {
  return impl_->error();
}

std::uint64_t TarReader::unread_bytes() const {
  return impl_->unread_bytes();
}

}  // namespace millrace
