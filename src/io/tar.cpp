#include "millrace/io/tar.h"

#include <archive_entry.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>

#include "archive_handle.h"
#include "archive_input.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/io/input_file.h"
#include "millrace/io/net/urls.h"
#include "tar_names.h"
#include "thread_locale.h"

namespace millrace {

namespace {

constexpr std::size_t max_fields = 1000;                  // of a sample
constexpr std::uint64_t most_bytes_of_empty_tar = 10240;  // a record of zeros
constexpr std::uint64_t block_bytes = 512;                // headers and members of a tar start at multiples of it

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
  return (byte + block_bytes - 1) / block_bytes * block_bytes;
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
  Impl(const std::string& url, TarOptions options) : Impl(url, std::move(options), nullptr) {
    if (const std::string path = local_path(url); !path.empty()) {
      begin(std::make_unique<ArchiveInput>(path));
      // Where members lie in the file as they are, a skipped one costs a seek, and its end can be checked beforehand.
      const bool is_plain = archive_filter_code(archive_.get(), 0) == ARCHIVE_FILTER_NONE && !input_->packed_bytes();
      (is_plain ? file_bytes_ : compressed_bytes_) = input_->size();
    } else {
      begin(std::make_unique<ArchiveInput>(open_stream(url)));
    }
  }

  Impl(std::unique_ptr<ByteStream> stream, std::string name, TarOptions options)
      : Impl(std::move(name), std::move(options), nullptr) {
    is_part_ = true;
    begin(std::make_unique<ArchiveInput>(std::move(stream)));
  }

  // Gathers one sample; without `want_bytes` its members are passed over.
  std::optional<TarSample> gather(bool want_bytes) {
    const ThreadLocale as_they_are(locale_for_reading_names());
    if (!pending_) advance();
    if (!pending_) return std::nullopt;
    TarSample sample{.key = pending_->name.key, .fields = {}, .begin = pending_->begin};
    std::uint64_t room = options_.max_sample_bytes;
    while (pending_ && pending_->name.key == sample.key && !has_field(sample, pending_->name.field)) {
      std::string bytes;
      const bool wanted = want_bytes && is_wanted(pending_->name.field), fits = pending_->bytes <= room;
      if (!consume(wanted && fits, bytes)) {
        error_->half_sample = true;
        return std::nullopt;
      }
      room -= bytes.size();
      const bool is_kept = sample.fields.size() < max_fields;
      sample.oversized |= (wanted && !fits) || !is_kept;
      if (is_kept) sample.fields.emplace_back(std::move(pending_->name.field), std::move(bytes));
      sample.end = member_end_;
      advance();
    }
    if (error_ && !has_end_mark_ && !seems_complete(sample)) {
      error_->half_sample = true;
      return std::nullopt;
    }
    remember_fields(sample);
    return sample;
  }

  const std::optional<BrokenArchive>& error() const { return error_; }
  std::uint64_t unread_bytes() const { return unread_bytes_; }

 private:
  Impl(std::string name, TarOptions options, std::nullptr_t)
      : name_(std::move(name)), options_(std::move(options)), archive_(archive_read_new()) {
    archive_read_support_format_tar(archive_.get());
    archive_read_support_filter_gzip(archive_.get());  // within another filter
    archive_read_support_filter_bzip2(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_filter_zstd(archive_.get());
  }

  void begin(std::unique_ptr<ArchiveInput> input) {
    input_ = std::move(input);
    input_->unpack_gzip();
    if (!is_usable(input_->open(archive_.get()))) set_broken(words_for_error(archive_.get()));
  }

  // Moves to the next member that belongs to a sample; none is pending at the end or when the archive is broken.
  void advance() {
    pending_.reset();
    while (!error_ && !at_end_) {
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
      std::string ignored;
      consume(false, ignored);
    }
  }

  archive_entry* next_entry() {
    archive* const a = archive_.get();
    if (in_member_ && !is_usable(archive_read_data_skip(a))) return set_broken(words_for_error(a));
    in_member_ = false;
    const auto end_of_member = archive_filter_bytes(a, 0);
    archive_entry* entry = nullptr;
    const int result = archive_read_next_header(a, &entry);
    if (result == ARCHIVE_EOF) {
      at_end_ = true;
      input_->check_storage();
      // The end mark is a block of zeros; a file cut between two members ends without one.
      if (archive_filter_bytes(a, 0) == end_of_member) return set_broken("no end mark, the archive was cut short");
      if (!has_members_ && is_plain_file() && file_bytes_ > most_bytes_of_empty_tar)
        return set_broken("no member before its end mark; was the file written whole?");
      has_end_mark_ = true;
      return finish_input();
    }
    if (!is_usable(result)) return set_broken(words_for_error(a));
    in_member_ = has_members_ = true;
    entry_begin_ = static_cast<std::uint64_t>(archive_read_header_position(a));
    entry_bytes_ = static_cast<std::uint64_t>(std::max<la_int64_t>(archive_entry_size(entry), 0));
    stored_as_is_ = archive_entry_sparse_count(entry) == 0;
    return entry;
  }

  // Reads the member at hand into `bytes` or passes over it; false when it is not all there.
  bool consume(bool want_bytes, std::string& bytes) {
    member_end_ = 0;
    if (is_plain_file() && stored_as_is_) {
      const auto start = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
      if (entry_bytes_ > file_bytes_ || start > file_bytes_ - entry_bytes_) {
        set_broken("cut short within a member");
        return false;
      }
      member_end_ = end_of_block(start + entry_bytes_);
      if (!want_bytes) return true;
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
        return false;
      }
      bytes.resize(static_cast<std::size_t>(offset), '\0');  // holes of a sparse member are zeros
      bytes.append(static_cast<const char*>(block), size);
    }
    if (result != ARCHIVE_EOF) set_broken(words_for_error(archive_.get()));
    // Cut within the zeros that fill up the last block: the archive is broken, this member is whole.
    const bool whole = result == ARCHIVE_EOF || received == entry_bytes_;
    if (want_bytes && whole) bytes.resize(entry_bytes_, '\0');
    if (is_plain_file() && whole && member_end_ == 0)  // of a sparse member, whose size says nothing about it
      member_end_ = end_of_block(static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0)));
    return whole;
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

  std::nullptr_t finish_input() {
    input_->finish();
    input_->check_storage();
    if (input_->failure()) error_ = BrokenArchive{fmt::format("{}, after the end of the archive", *input_->failure())};
    if (input_->damage())
      error_ = BrokenArchive{fmt::format("{}: {}, after the end of the archive", name_, *input_->damage())};
    look_behind_end();
    if (links_ > 0 && !is_part_ && is_first_word_about(name_))
      log::warning("{}: {} members are links, which are not followed: make it by tar --dereference --hard-dereference",
                   name_, links_);
    return nullptr;
  }

  // Archives put together by cat: only the first is one. Some tars end in more zeros than the mark has.
  void look_behind_end() {
    constexpr std::uint64_t look = 1 << 20;
    if (!is_plain_file()) return look_behind_compressed(look);
    const auto end = static_cast<std::uint64_t>(archive_filter_bytes(archive_.get(), 0));
    if (end >= file_bytes_) return;
    std::vector<std::byte> bytes(std::min(look, file_bytes_ - end));
    bytes.resize(InputFile(local_path(name_)).read_at(end, bytes));
    const bool are_zeros = std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
    if (!are_zeros) tell_unread(file_bytes_ - end);
  }

  // What unpacks reads a little ahead.
  void look_behind_compressed(std::uint64_t look) {
    if (compressed_bytes_ == std::numeric_limits<std::uint64_t>::max()) return;
    const auto taken = static_cast<std::uint64_t>(std::max<la_int64_t>(archive_filter_bytes(archive_.get(), -1), 0));
    const std::uint64_t end = input_->packed_bytes().value_or(taken);
    if (end == 0 || end + look >= compressed_bytes_) return;
    tell_unread(compressed_bytes_ - end);
  }

  void tell_unread(std::uint64_t bytes) {
    unread_bytes_ = bytes;
    if (is_first_word_about(name_))
      log::warning("{}: {} bytes behind the archive's end mark are not read", name_, bytes);
  }

  bool is_plain_file() const { return file_bytes_ != std::numeric_limits<std::uint64_t>::max(); }

  std::nullptr_t set_broken(const char* why) {
    input_->check_storage();
    const auto at = std::max<la_int64_t>(archive_filter_bytes(archive_.get(), 0), 0);
    if (input_->damage()) why = input_->damage()->c_str();
    if (input_->failure()) why = input_->failure()->c_str();
    error_ = BrokenArchive{fmt::format("{}: broken near byte {} of the tar: {}", name_, at, why),
                           /*half_sample=*/false, input_->failure().value_or("")};
    return nullptr;
  }

  std::string name_;
  TarOptions options_;
  std::unique_ptr<ArchiveInput> input_;  // feeds the archive, so it outlives it
  ArchiveHandle archive_;
  std::uint64_t file_bytes_ = std::numeric_limits<std::uint64_t>::max();        // of a plain file; else unknown
  std::uint64_t compressed_bytes_ = std::numeric_limits<std::uint64_t>::max();  // of a compressed file; else unknown

  std::optional<Member> pending_;  // header read, bytes not yet
  bool in_member_ = false;         // libarchive stands within a member
  std::uint64_t entry_begin_ = 0, entry_bytes_ = 0;
  std::uint64_t member_end_ = 0;  // of the member last passed, padding included; 0 = unknown, as in a stream
  bool stored_as_is_ = true;      // not sparse
  bool at_end_ = false, has_end_mark_ = false, has_members_ = false;
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

std::optional<std::string> TarReader::skip_one() {
  auto sample = impl_->gather(false);
  return sample ? std::optional(std::move(sample->key)) : std::nullopt;
}

const std::optional<BrokenArchive>& TarReader::error() const {
  return impl_->error();
}

std::uint64_t TarReader::unread_bytes() const {
  return impl_->unread_bytes();
}

std::uint64_t count_rows(const std::string& url) {
  return TarReader(url).skip(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace millrace
