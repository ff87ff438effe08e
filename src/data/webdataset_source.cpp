#include "webdataset_source.h"

#include <unicode/unistr.h>

#include <fstream>
#include <string>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"
#include "millrace/io/tar.h"
#include "millrace/io/urls.h"

namespace millrace {

namespace {

constexpr std::uint64_t max_sample_bytes = 512ull << 20;
constexpr const char* image_fields[] = {"jpg", "png", "jpeg", "webp"};

TarOptions wanted_fields(bool with_json) {
  TarOptions options;
  options.fields = {"jpg", "png", "jpeg", "webp", "txt"};
  if (with_json) options.fields.push_back("json");
  return options;
}

std::string* find_field(TarSample& sample, std::string_view name) {
  for (auto& [field, bytes] : sample.fields) {
    if (field == name) return &bytes;
  }
  return nullptr;
}

std::string* find_image(TarSample& sample) {
  for (const char* field : image_fields) {
    if (std::string* bytes = find_field(sample, field)) return bytes;
  }
  return nullptr;
}

std::string valid_utf8(const std::string& bytes) {
  std::string text;
  icu::UnicodeString::fromUTF8(bytes).toUTF8String(text);  // ill-formed sequences become U+FFFD
  return text;
}

SampleRef named(std::string id) {
  SampleRef ref;
  ref.hash = hash64(id);
  ref.id = std::move(id);
  return ref;
}

RawRow to_row(TarSample sample, SampleRef ref) {
  std::string* const image = find_image(sample);
  std::string* const caption = find_field(sample, "txt");
  if (!image) return Rejected{std::move(ref), Reason::missing_image, "none of jpg, png, jpeg, webp"};
  if (!caption) return Rejected{std::move(ref), Reason::missing_caption, "no txt"};
  RawSample raw;
  raw.ref = std::move(ref);
  raw.image = std::move(*image);
  raw.has_caption = true;
  raw.caption = valid_utf8(*caption);
  if (std::string* const json = find_field(sample, "json")) raw.json = std::move(*json);
  return raw;
}

SampleRef name_sample(const Archive& archive, const std::string& key, int occurrence) {
  return named(occurrence == 1 ? archive.name + "/" + key : fmt::format("{}/{}#{}", archive.name, key, occurrence));
}

// A whole archive from front to back, as streams must be read.
class FrontToBackReader final : public UnitReader {
 public:
  FrontToBackReader(const Archive& archive, TarOptions options)
      : archive_(archive), tar_(archive.path, std::move(options)) {}

  std::optional<RawRow> next() override {
    if (ended_ || rows_ == archive_.limit) return std::nullopt;
    ++rows_;
    if (std::optional<TarSample> sample = tar_.next()) {
      SampleRef ref = name_sample(archive_, sample->key, keys_.add(sample->key));
      return to_row(std::move(*sample), std::move(ref));
    }
    ended_ = true;
    if (!tar_.error()) return std::nullopt;
    return Rejected{named(archive_.name), Reason::archive_error, tar_.error()->message};
  }

 private:
  const Archive& archive_;
  TarReader tar_;
  KeyCounter keys_;
  std::uint64_t rows_ = 0;
  bool ended_ = false;
};

// The bytes of one sample, and the two empty blocks that end a tar.
class SampleBytes final : public ByteStream {
 public:
  explicit SampleBytes(std::string bytes) : bytes_(std::move(bytes)) { bytes_.append(1024, '\0'); }

  std::size_t read(std::span<std::byte> buffer) override {
    const std::size_t size = bytes_.copy(reinterpret_cast<char*>(buffer.data()), buffer.size(), place_);
    place_ += size;
    return size;
  }

 private:
  std::string bytes_;
  std::size_t place_ = 0;
};

// One lane of a plain file, or what is left of it: goes to each sample by the index.
class IndexedReader final : public UnitReader {
 public:
  IndexedReader(const Archive& archive, const TarIndex& index, const Unit& unit, std::uint64_t first_row,
                TarOptions options)
      : archive_(archive),
        index_(index),
        options_(std::move(options)),
        file_(local_path(archive.path), std::ios::binary),
        next_(unit.lane + first_row * unit.lanes),
        stride_(unit.lanes) {}

  std::optional<RawRow> next() override {
    const std::uint64_t place = std::exchange(next_, next_ + stride_);
    if (archive_.limit && place >= *archive_.limit) return std::nullopt;
    if (place < index_.samples.size()) return sample_at(place);
    // A broken archive is one row behind its readable samples, in the lane whose turn it is.
    if (place > index_.samples.size() || !index_.broken) return std::nullopt;
    return Rejected{named(archive_.name), Reason::archive_error, *index_.broken};
  }

 private:
  RawRow sample_at(std::uint64_t place) {
    const auto [begin, end] = index_.samples[place];
    if (end - begin > max_sample_bytes)
      return Rejected{named(archive_.name), Reason::too_large, fmt::format("at byte {}", begin)};
    std::string bytes(end - begin, '\0');
    if (!file_.seekg(static_cast<std::streamoff>(begin)) ||
        !file_.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
      fail(Exit::io, "{}: cannot read bytes {} to {}; was the file changed while it is in use?", archive_.path, begin,
           end);
    }
    std::optional<TarSample> sample =
        TarReader(std::make_unique<SampleBytes>(std::move(bytes)), archive_.path, options_).next();
    if (!sample)
      fail(Exit::io, "{}: no sample at byte {}; was the file changed while it is in use?", archive_.path, begin);
    const auto repeated = index_.repeated.find(place);
    SampleRef ref = name_sample(archive_, sample->key, repeated == index_.repeated.end() ? 1 : repeated->second);
    return to_row(std::move(*sample), std::move(ref));
  }

  const Archive& archive_;
  const TarIndex& index_;
  const TarOptions options_;
  std::ifstream file_;
  std::uint64_t next_;  // position in the archive of the lane's next sample
  const std::uint64_t stride_;
};

}  // namespace

std::unique_ptr<UnitReader> WebDatasetSource::open(const Unit& unit, std::uint64_t first_row) const {
  const Archive& archive = manifest_.archives.at(unit.archive);
  const bool whole = unit.lanes == 1 && first_row == 0;
  if (archive.seekable && !whole) {
    const TarIndex& index = index_of(unit.archive);
    if (index.plain) return std::make_unique<IndexedReader>(archive, index, unit, first_row, wanted_fields(with_json_));
    if (unit.lanes > 1) {
      throw Error(Exit::io, fmt::format("{} is compressed and cannot be read in lanes", archive.path),
                  "name it .tar.gz, or unpack it");
    }
  }
  auto reader = std::make_unique<FrontToBackReader>(archive, wanted_fields(with_json_));
  for (std::uint64_t row = 0; row < first_row && reader->next(); ++row) continue;
  return reader;
}

const TarIndex& WebDatasetSource::index_of(std::uint32_t archive) const {
  std::unique_lock lock(mutex_);
  Indexed& indexed = indices_[archive];
  lock.unlock();
  std::call_once(indexed.once, [&] { indexed.index = index_tar(local_path(manifest_.archives[archive].path)); });
  return indexed.index;
}

}  // namespace millrace
