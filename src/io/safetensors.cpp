#include "millrace/io/safetensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "millrace/core/error.h"

namespace millrace {

namespace {

[[noreturn]] void refuse(std::string_view where, const std::string& what) {
  throw Error(Exit::io, fmt::format("{}: not a valid safetensors file: {}", where, what),
              "the file is damaged or incomplete: copy or download it again");
}

// Walks through the header's JSON and accepts its one shape only, so nothing is built that could nest or repeat:
//   {"__metadata__": {text: text...}, NAME: {"dtype": text, "shape": [n...], "data_offsets": [begin, end]}...}
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderHandler(std::string_view where, SafetensorsHeader& header) : where_(where), header_(header) {}

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override { unexpected("the number " + text); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape) {
      if (value > INT64_MAX) unexpected("a dimension beyond 63 bits");
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::offsets) {
      offsets_.push_back(value);
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(string_t& text) override {
    if (state_ == State::metadata) {
      if (!header_.metadata.emplace(key_, text).second)
        refuse(where_, fmt::format("metadata key '{}' occurs twice", key_));
    } else if (state_ == State::tensor && key_ == "dtype") {
      const auto dtype = try_parse_dtype(text);
      if (!dtype) unexpected(fmt::format("unknown dtype '{}'", text));
      tensor_.dtype = *dtype;
    } else {
      unexpected("text");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::start) {
      state_ = State::top;
    } else if (state_ == State::top) {
      state_ = key_ == "__metadata__" ? State::metadata : State::tensor;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& text) override {
    if (state_ == State::top) {
      if (!names_.insert(text).second) refuse(where_, fmt::format("'{}' occurs twice", text));
      tensor_ = TensorInfo();
      tensor_.name = text;
      offsets_.clear();
      seen_.clear();
    } else if (state_ == State::tensor) {
      if (text != "dtype" && text != "shape" && text != "data_offsets") unexpected(fmt::format("the key '{}'", text));
      if (!seen_.insert(text).second) unexpected(fmt::format("a second '{}'", text));
    }
    key_ = text;
    return true;
  }

  bool end_object() override {
    if (state_ == State::tensor) finish_tensor();
    state_ = state_ == State::top ? State::start : State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::tensor || key_ == "dtype") unexpected("a list");
    state_ = key_ == "shape" ? State::shape : State::offsets;
    return true;
  }

  bool end_array() override {
    state_ = State::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    refuse(where_, fmt::format("the header is not JSON at its byte {}", position));
  }

 private:
  enum class State { start, top, metadata, tensor, shape, offsets };

  [[noreturn]] void unexpected(const std::string& what) const {
    if (state_ == State::start || state_ == State::top)
      refuse(where_, fmt::format("unexpected {} in the header", what));
    refuse(where_, fmt::format("'{}': unexpected {}", tensor_.name, what));
  }

  void finish_tensor() {
    if (seen_.size() != 3) refuse(where_, fmt::format("'{}' lacks dtype, shape or data_offsets", tensor_.name));
    if (offsets_.size() != 2)
      refuse(where_, fmt::format("'{}' has {} data_offsets, not 2", tensor_.name, offsets_.size()));
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  std::string_view where_;
  SafetensorsHeader& header_;
  State state_ = State::start;
  std::string key_;
  TensorInfo tensor_;
  std::vector<std::uint64_t> offsets_;
  std::set<std::string> names_, seen_;  // of the file, of the tensor at hand
};

// From the first 8 bytes of a file.
std::uint64_t read_header_length(std::span<const std::byte> begin, std::uint64_t file_bytes, std::string_view where) {
  if (file_bytes < 8 || begin.size() < 8) refuse(where, fmt::format("{} bytes are too few", file_bytes));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | std::to_integer<std::uint64_t>(begin[static_cast<std::size_t>(i)]);
  if (length > max_safetensors_header)
    refuse(where, fmt::format("a header of {} bytes; {} are allowed", length, max_safetensors_header));
  if (length > file_bytes - 8) refuse(where, fmt::format("a header of {} bytes in a file of {}", length, file_bytes));
  return length;
}

// Tensors, sorted by offset, must follow each other without gap or overlap and end where the file ends.
void check_layout(const SafetensorsHeader& header, std::uint64_t data_bytes, std::string_view where) {
  std::uint64_t position = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != position || tensor.end < tensor.begin || tensor.end > data_bytes) {
      refuse(where, fmt::format("'{}' lies at bytes [{}, {}) where {} was due, in {} bytes of data", tensor.name,
                                tensor.begin, tensor.end, position, data_bytes));
    }
    const auto expected = try_byte_count(tensor.dtype, tensor.shape);
    if (!expected || *expected != tensor.end - tensor.begin) {
      refuse(where, fmt::format("'{}' has {} bytes, which is not {} x ({})", tensor.name, tensor.end - tensor.begin,
                                to_string(tensor.dtype), fmt::join(tensor.shape, ", ")));
    }
    position = tensor.end;
  }
  if (position != data_bytes) refuse(where, fmt::format("{} bytes belong to no tensor", data_bytes - position));
}

// A directory can be opened, and some file systems give it a few bytes. What cannot be looked at cannot be opened.
std::unique_ptr<const InputFile> open_regular(const fs::path& path) {
  std::error_code ignored;
  const auto status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) fail(Exit::io, "{} is not a regular file", path.string());
  return std::make_unique<InputFile>(path.string());
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  return parse_safetensors(file, file.size(), where);
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> begin, std::uint64_t file_bytes,
                                    std::string_view where) {
  const std::uint64_t length = read_header_length(begin, file_bytes, where);
  if (length > begin.size() - 8) refuse(where, "the file ends within its header");
  const char* const text = reinterpret_cast<const char*>(begin.data()) + 8;
  if (length == 0 || *text != '{') refuse(where, "the header does not begin with '{'");
  // The JSON library takes a zero byte for the end of its input, the format does not.
  if (std::find(text, text + length, '\0') != text + length) refuse(where, "a zero byte in the header");
  SafetensorsHeader header;
  header.data_offset = 8 + length;
  HeaderHandler handler(where, header);
  nlohmann::json::sax_parse(text, text + length, &handler);
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_layout(header, file_bytes - header.data_offset, where);
  return header;
}

SafetensorsHeader read_safetensors_header(const InputFile& file, std::string_view where) {
  const std::uint64_t bytes = file.size();
  std::vector<std::byte> begin(std::min<std::uint64_t>(bytes, 8));
  begin.resize(file.read_at(0, begin));
  begin.resize(8 + read_header_length(begin, bytes, where));
  begin.resize(file.read_at(0, begin));
  return parse_safetensors(begin, bytes, where);
}

SafetensorsFile::SafetensorsFile(fs::path path)
    : path_(std::move(path)), file_(open_regular(path_)), header_(read_safetensors_header(*file_, path_.string())) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) fail(Exit::io, "{} holds no tensor '{}'", path_.string(), name);
  return header_.tensors[found->second];
}

void SafetensorsFile::read(const TensorInfo& info, std::span<std::byte> out) const {
  ensure(out.size() == info.end - info.begin, "a tensor's bytes fit its shape");
  if (file_->read_at(header_.data_offset + info.begin, out) != out.size())
    refuse(path_.string(), fmt::format("the file ends within '{}'", info.name));
}

std::vector<std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  std::vector<std::byte> bytes(info.end - info.begin);
  read(info, bytes);
  return bytes;
}

}  // namespace millrace
