#include "millrace/parcels/parcel_bytes.h"

#include <algorithm>
#include <cstring>

#include "millrace/core/error.h"

namespace millrace {
namespace {

constexpr std::uint32_t magic = 0x4c43504d;  // "MPCL"
constexpr std::uint32_t version = 3;

struct Header {
  std::uint32_t magic, version, stripe, count;
  std::uint32_t moments_shape[3];  // channels, h, w
  std::uint32_t text_shape[2];     // tokens, C; C = 0: the tokens themselves
  std::uint32_t ledger_bytes;
  ProducerReport report;
};

struct RefRecord {
  std::uint64_t hash;
  std::uint64_t row;
  std::uint32_t epoch, after_epoch, after_split, after_given;
  std::uint32_t id_bytes;
  std::uint32_t reserved;
};

class Writer {
 public:
  explicit Writer(std::size_t bytes) { bytes_.reserve(bytes); }
  void append(const void* data, std::size_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + count);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > rest_.size()) fail(Exit::io, "parcel: {} bytes are missing", count - rest_.size());
    auto part = rest_.first(count);
    rest_ = rest_.subspan(count);
    return part;
  }
  template <class T>
  T read() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text(std::uint64_t count) {
    auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

// Of all samples together.
std::span<const std::byte> read_values(Reader& reader, std::size_t value_bytes, std::uint64_t samples,
                                       const std::vector<std::int64_t>& shape) {
  std::uint64_t extent = std::max<std::uint64_t>(samples, 1);  // strides must fit even where a side is 0
  for (const auto side : shape)
    if (__builtin_mul_overflow(extent, std::max<std::uint64_t>(side, 1), &extent) || extent > (1ull << 40))
      fail(Exit::io, "parcel: impossible tensor shape");
  return reader.take(value_bytes * samples * static_cast<std::uint64_t>(c10::multiply_integers(shape)));
}

void copy_rows(std::span<const std::byte> values, std::int64_t first, std::int64_t count, torch::Tensor& to,
               std::int64_t row) {
  const auto row_bytes = static_cast<std::int64_t>(to.nbytes()) / to.size(0);
  const auto from = values.subspan(first * row_bytes, count * row_bytes);
  if (!from.empty())
    std::memcpy(static_cast<std::byte*>(to.mutable_data_ptr()) + row * row_bytes, from.data(), from.size());
}

}  // namespace

std::size_t parcel_capacity_bytes(int samples, const EncodingShape& shape, std::size_t id_bytes,
                                  std::size_t ledger_bytes) {
  return sizeof(Header) + samples * (sizeof(RefRecord) + id_bytes + encoding_bytes(shape)) + ledger_bytes;
}

std::vector<std::byte> pack_parcel(const ParcelContent& content) {
  const auto& [refs, moments, text] = content.batch;
  const EncodingShape shape{moments.sizes().slice(1).vec(), text.sizes().slice(1).vec()};
  ensure(moments.is_contiguous() && text.is_contiguous() && moments.scalar_type() == torch::kHalf &&
             text.scalar_type() == text_dtype(shape),
         "parcels hold contiguous moments and text in f16, or tokens in i32");
  std::size_t id_bytes = 0;
  for (const auto& ref : refs) id_bytes = std::max(id_bytes, ref.id.size());
  Writer writer(parcel_capacity_bytes(refs.size(), shape, id_bytes, content.ledger_delta.size()));

  Header header{magic,
                version,
                content.stripe,
                static_cast<std::uint32_t>(refs.size()),
                {},
                {},
                static_cast<std::uint32_t>(content.ledger_delta.size()),
                content.report};
  std::ranges::copy(shape.moments, header.moments_shape);
  std::ranges::copy(shape.text, header.text_shape);
  writer.append(&header, sizeof header);
  for (const auto& ref : refs) {
    const RefRecord record{ref.hash,
                           ref.after.row,
                           ref.epoch,
                           ref.after.epoch,
                           ref.after.split,
                           ref.after.given,
                           static_cast<std::uint32_t>(ref.id.size()),
                           0};
    writer.append(&record, sizeof record);
    writer.append(ref.id.data(), ref.id.size());
  }
  writer.append(content.ledger_delta.data(), content.ledger_delta.size());
  writer.append(moments.data_ptr(), moments.nbytes());
  writer.append(text.data_ptr(), text.nbytes());
  return writer.take();
}

ParcelView read_parcel(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const auto header = reader.read<Header>();
  if (header.magic != magic || header.version != version) fail(Exit::io, "parcel: not a parcel of format {}", version);
  ParcelView parcel;
  parcel.stripe = header.stripe;
  parcel.report = header.report;
  for (std::uint32_t i = 0; i < header.count; ++i) {
    const auto record = reader.read<RefRecord>();
    SampleRef ref;
    ref.id = reader.text(record.id_bytes);
    ref.hash = record.hash;
    ref.epoch = record.epoch;
    ref.stripe = header.stripe;
    ref.after = {record.after_epoch, record.after_split, record.row, record.after_given};
    parcel.refs.push_back(std::move(ref));
  }
  parcel.ledger_delta = reader.text(header.ledger_bytes);
  const auto& [tokens, text_width] = header.text_shape;
  parcel.shape.moments.assign(std::begin(header.moments_shape), std::end(header.moments_shape));
  parcel.shape.text =
      text_width == 0 ? std::vector<std::int64_t>{tokens} : std::vector<std::int64_t>{tokens, text_width};
  parcel.moments = read_values(reader, c10::elementSize(torch::kHalf), header.count, parcel.shape.moments);
  parcel.text = read_values(reader, c10::elementSize(text_dtype(parcel.shape)), header.count, parcel.shape.text);
  if (!reader.at_end()) fail(Exit::io, "parcel: bytes left over after the last tensor");
  return parcel;
}

void ParcelView::copy(std::int64_t first, std::int64_t count, EncodedBatch& batch, std::int64_t row) const {
  ensure(row + count <= std::ssize(batch.refs) && batch.moments.sizes().slice(1) == shape.moments &&
             batch.text.sizes().slice(1) == shape.text,
         "all parcels of a run hold encodings of one shape");
  std::copy_n(refs.begin() + first, count, batch.refs.begin() + row);
  copy_rows(moments, first, count, batch.moments, row);
  copy_rows(text, first, count, batch.text, row);
}

}  // namespace millrace
