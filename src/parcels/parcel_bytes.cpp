#include "millrace/parcels/parcel_bytes.h"

#include <algorithm>
#include <cstring>

#include "millrace/core/error.h"

namespace millrace {
namespace {

constexpr std::uint32_t magic = 0x4c43504d;  // "MPCL"
constexpr std::uint32_t version = 2;

struct Header {
  std::uint32_t magic, version, stripe, count;
  std::uint32_t moments_shape[3];  // channels, h, w
  std::uint32_t text_shape[2];     // tokens, C
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

torch::Tensor read_half(Reader& reader, at::IntArrayRef shape) {
  std::uint64_t extent = 1;  // strides must fit even where a side is 0
  for (auto side : shape)
    if (__builtin_mul_overflow(extent, std::max<std::uint64_t>(side, 1), &extent) || extent > (1ull << 40))
      fail(Exit::io, "parcel: impossible tensor shape");
  auto bytes = reader.take(2 * static_cast<std::uint64_t>(c10::multiply_integers(shape)));
  auto tensor = torch::empty(shape, torch::kHalf);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

std::size_t parcel_capacity_bytes(int samples, at::IntArrayRef moments_shape, at::IntArrayRef text_shape,
                                  std::size_t id_bytes, std::size_t ledger_bytes) {
  const std::size_t values = c10::multiply_integers(moments_shape) + c10::multiply_integers(text_shape);
  return sizeof(Header) + samples * (sizeof(RefRecord) + id_bytes + 2 * values) + ledger_bytes;
}

std::vector<std::byte> pack_parcel(const ParcelContent& content) {
  const auto& [refs, moments, text] = content.batch;
  ensure(moments.is_contiguous() && text.is_contiguous() && moments.scalar_type() == torch::kHalf &&
             text.scalar_type() == torch::kHalf,
         "parcels hold contiguous f16 tensors");
  std::size_t id_bytes = 0;
  for (const auto& ref : refs) id_bytes = std::max(id_bytes, ref.id.size());
  Writer writer(parcel_capacity_bytes(refs.size(), moments.sizes().slice(1), text.sizes().slice(1), id_bytes,
                                      content.ledger_delta.size()));

  Header header{magic,
                version,
                content.stripe,
                static_cast<std::uint32_t>(refs.size()),
                {},
                {},
                static_cast<std::uint32_t>(content.ledger_delta.size()),
                content.report};
  for (int i = 0; i < 3; ++i) header.moments_shape[i] = moments.size(i + 1);
  for (int i = 0; i < 2; ++i) header.text_shape[i] = text.size(i + 1);
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

ParcelContent unpack_parcel(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const auto header = reader.read<Header>();
  if (header.magic != magic || header.version != version) fail(Exit::io, "parcel: not a parcel of format {}", version);
  ParcelContent content;
  content.stripe = header.stripe;
  content.report = header.report;
  for (std::uint32_t i = 0; i < header.count; ++i) {
    const auto record = reader.read<RefRecord>();
    SampleRef ref;
    ref.id = reader.text(record.id_bytes);
    ref.hash = record.hash;
    ref.epoch = record.epoch;
    ref.stripe = header.stripe;
    ref.after = {record.after_epoch, record.after_split, record.row, record.after_given};
    content.batch.refs.push_back(std::move(ref));
  }
  content.ledger_delta = reader.text(header.ledger_bytes);
  const auto count = static_cast<std::int64_t>(header.count);
  content.batch.moments =
      read_half(reader, {count, header.moments_shape[0], header.moments_shape[1], header.moments_shape[2]});
  content.batch.text = read_half(reader, {count, header.text_shape[0], header.text_shape[1]});
  if (!reader.at_end()) fail(Exit::io, "parcel: bytes left over after the last tensor");
  return content;
}

}  // namespace millrace
