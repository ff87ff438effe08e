#include "millrace/checkpoint/tensors.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/io/safetensors.h"
#include "millrace/parallel/storage_order.h"

namespace millrace {

torch::Tensor CheckpointTensors::tensor(const std::string& kind, const std::string& name) {
  const auto& entry = checkpoint_.entry(kind, name);
  auto flat = torch::empty({entry.elements()}, torch::kFloat32);
  read(CheckpointManifest::key(kind, name), entry, 0, {flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel())});
  return from_storage_order(flat, entry.shape, entry.channels_last).contiguous();
}

void CheckpointTensors::read(const std::string& kind, const Slice& slice, std::span<float> elements) {
  const auto& entry = checkpoint_.entry(kind, slice.name);
  if (entry.shape != slice.shape)
    fail(Exit::io, "{}: {} has another shape than the model's", checkpoint_.path().string(), slice.name);
  if (entry.channels_last == slice.channels_last) {
    read(CheckpointManifest::key(kind, slice.name), entry, slice.begin, elements);
    return;
  }
  // The elements lie in another order there, so no part of them will do.
  const auto flat = in_storage_order(tensor(kind, slice.name), slice.channels_last).slice(0, slice.begin, slice.end);
  std::copy_n(flat.data_ptr<float>(), elements.size(), elements.begin());
}

void CheckpointTensors::read(const std::string& key, const CheckpointTensor& tensor, std::int64_t begin,
                             std::span<float> elements) {
  const std::int64_t end = begin + static_cast<std::int64_t>(elements.size());
  for (const auto& part : tensor.parts) {
    const auto from = std::max(begin, part.begin), to = std::min(end, part.end);
    if (from >= to) continue;
    const Place place = open(part.file, key);
    const auto& path = checkpoint_.path() / checkpoint_.files()[part.file].name;
    if (place.bytes != sizeof(float) * static_cast<std::uint64_t>(part.end - part.begin))
      fail(Exit::io, "{}: the parts of {} do not fit its shape", path.string(), key);
    const auto out = std::as_writable_bytes(
        elements.subspan(static_cast<std::size_t>(from - begin), static_cast<std::size_t>(to - from)));
    const auto offset = place.begin + sizeof(float) * static_cast<std::uint64_t>(from - part.begin);
    if (file_->read_at(offset, out) != out.size()) fail(Exit::io, "{} ends within {}", path.string(), key);
  }
}

CheckpointTensors::Place CheckpointTensors::open(std::size_t number, const std::string& key) {
  const auto path = (checkpoint_.path() / checkpoint_.files()[number].name).string();
  if (!file_ || file_number_ != number) {
    file_ = std::make_unique<InputFile>(path);
    file_number_ = number;
  }
  if (!places_.contains(number)) {
    const auto header = read_safetensors_header(*file_, path);
    for (const auto& info : header.tensors) {
      if (info.dtype != DType::f32) fail(Exit::io, "{}: {} is not in float32", path, info.name);
      places_[number][info.name] = {header.data_offset + info.begin, info.end - info.begin};
    }
  }
  const auto& places = places_.at(number);
  const auto found = places.find(key);
  if (found == places.end()) fail(Exit::io, "{} holds no tensor '{}'", path, key);
  return found->second;
}

}  // namespace millrace
