#include "millrace/io/safetensors_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/io/safetensors.h"

namespace millrace {

namespace {

std::vector<TensorSpec> in_file_order(std::vector<TensorSpec> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  return tensors;
}

std::vector<std::uint64_t> sizes_of(const std::vector<TensorSpec>& tensors) {
  std::vector<std::uint64_t> sizes;
  for (const TensorSpec& tensor : tensors) {
    const auto size = try_byte_count(tensor.dtype, tensor.shape);
    ensure(size.has_value(), "tensor " + tensor.name + " has no size in whole bytes");
    sizes.push_back(*size);
  }
  return sizes;
}

void check_names(const std::vector<TensorSpec>& tensors) {
  std::vector<std::string_view> names;
  for (const TensorSpec& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  ensure(std::adjacent_find(names.begin(), names.end()) == names.end(), "two tensors of one name");
  ensure(!std::binary_search(names.begin(), names.end(), "__metadata__"), "a tensor cannot be called __metadata__");
}

// Names may hold bytes that are not UTF-8 only by mistake of a caller; the library's strict mode then throws.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump();
}

// Written by hand, because a JSON library's object would sort the names and the file's order is another.
std::string header_text(const std::vector<TensorSpec>& tensors, const std::vector<std::uint64_t>& sizes,
                        const SafetensorsMetadata& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(quoted(key) + ":" + quoted(value));
    entries.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", quoted(tensor.name),
                                  to_string(tensor.dtype), fmt::join(tensor.shape, ","), begin, begin + sizes[i]));
    begin += sizes[i];
  }
  std::string text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that 8-byte elements lie aligned
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(fs::path path, std::vector<TensorSpec> tensors,
                                     const SafetensorsMetadata& metadata)
    : tensors_(in_file_order(std::move(tensors))), sizes_(sizes_of(tensors_)), file_(std::move(path)) {
  check_names(tensors_);
  const std::string header = header_text(tensors_, sizes_, metadata);
  ensure(header.size() <= max_safetensors_header, "a safetensors header is limited to 100 MB");
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file_.write(length.data(), length.size());
  file_.write(header);
}

bool SafetensorsWriter::current_is_full() const {
  return current_ < tensors_.size() && written_ == sizes_[current_];
}

void SafetensorsWriter::write(std::string_view name, std::span<const std::byte> piece) {
  while (current_is_full() && tensors_[current_].name != name) {
    ++current_;
    written_ = 0;
  }
  ensure(current_ < tensors_.size() && tensors_[current_].name == name,
         fmt::format("tensor {} is not the next one of the file", name));
  ensure(piece.size() <= sizes_[current_] - written_, fmt::format("too many bytes for tensor {}", name));
  file_.write(piece.data(), piece.size());
  written_ += piece.size();
}

AtomicFile::Written SafetensorsWriter::commit() {
  while (current_is_full()) {
    ++current_;
    written_ = 0;
  }
  if (current_ < tensors_.size()) ensure(false, "bytes of tensor " + tensors_[current_].name + " are missing");
  return file_.commit();
}

AtomicFile::Written save_safetensors(const fs::path& path, const std::vector<TensorBytes>& tensors,
                                     const SafetensorsMetadata& metadata) {
  std::vector<TensorSpec> specs;
  std::map<std::string_view, std::span<const std::byte>> bytes_of;
  for (const TensorBytes& tensor : tensors) {
    specs.push_back(tensor.spec);
    bytes_of[tensor.spec.name] = tensor.bytes;
  }
  SafetensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.order()) writer.write(spec.name, bytes_of.at(spec.name));
  return writer.commit();
}

}  // namespace millrace
