#include "millrace/io/npz.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <regex>

#include "archive_handle.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

// Of headers of numbers; a longer one describes records.
constexpr std::size_t longest_header = 4096;
// Of all arrays of a file together, inflated. Zeros shrink to a thousandth, numbers hardly: of a large file more is
// taken.
constexpr std::uint64_t most_bytes = 1 << 30, most_times = 8;

// Reads on until `bytes` are `size`, or the member ends. Error(io).
void read_up_to(archive* a, std::size_t size, std::string& bytes, const std::string& where) {
  char buffer[64 << 10];
  while (bytes.size() < size) {
    const auto count = archive_read_data(a, buffer, std::min(sizeof buffer, size - bytes.size()));
    if (count < 0) fail(Exit::io, "{}: {}", where, words_for_error(a));
    if (count == 0) return;
    bytes.append(buffer, static_cast<std::size_t>(count));
  }
}

struct Header {
  std::size_t element_bytes;
  bool is_fortran;
  std::size_t bytes;  // of the header itself
  std::vector<std::int64_t> shape = {};
  std::uint64_t count = 1;  // of elements
};

// numpy's format, versions 1 to 3: magic, version, length, then a Python dictionary in ASCII. Nothing for elements that
// are no little-endian floating-point numbers.
std::optional<Header> read_header(const std::string& npy, const std::string& where) {
  const auto damaged = [&]() -> Header { fail(Exit::io, "{}: no .npy array, or a damaged one", where); };
  if (npy.size() < 12 || npy.compare(0, 6, "\x93NUMPY") != 0) return damaged();
  const std::size_t width = npy[6] == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = 0; i < width; ++i) length |= std::size_t{static_cast<unsigned char>(npy[8 + i])} << (8 * i);
  if (length > longest_header) return std::nullopt;
  if (npy.size() < 8 + width + length) return damaged();
  const auto text = npy.substr(8 + width, length);
  std::smatch type, order, shape;
  if (!std::regex_search(text, type, std::regex("'descr': '([^']*)'")) ||
      !std::regex_search(text, order, std::regex("'fortran_order': (True|False)")) ||
      !std::regex_search(text, shape, std::regex("'shape': \\(([0-9, ]*)\\)")))
    return std::nullopt;
  if (type[1] != "<f4" && type[1] != "<f8") return std::nullopt;
  Header header{type[1] == "<f4" ? 4U : 8U, order[1] == "True", 8 + width + length};
  const auto sizes = shape[1].str();
  static const std::regex number("[0-9]+");
  for (std::sregex_iterator it(sizes.begin(), sizes.end(), number), end; it != end; ++it) {
    const auto size = parse_number<std::int64_t>(it->str());
    if (!size || __builtin_mul_overflow(header.count, static_cast<std::uint64_t>(*size), &header.count))
      return damaged();
    header.shape.push_back(*size);
  }
  return header;
}

double number_at(const char* bytes, std::size_t element_bytes) {
  if (element_bytes == 8) {
    double value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  float value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Where element `index` of a row-major array lies in one whose first dimension is the fastest.
std::size_t fortran_place(std::size_t index, const std::vector<std::int64_t>& shape) {
  std::size_t place = 0, stride = 1;
  for (const auto size : shape) stride *= static_cast<std::size_t>(size);
  for (auto axis = shape.size(); axis-- > 0;) {
    const auto size = static_cast<std::size_t>(shape[axis]);
    stride /= size;
    place += index % size * stride;
    index /= size;
  }
  return place;
}

// The header first, then what it tells of and no more. `left`: how many bytes the file's arrays may still have.
std::optional<NpzArray> read_array(archive* a, std::uint64_t& left, const std::string& where) {
  std::string npy;
  read_up_to(a, 12 + longest_header, npy, where);
  const auto header = read_header(npy, where);
  if (!header) return std::nullopt;
  const std::size_t count = header->count;
  if (count > left / header->element_bytes)
    fail(Exit::io, "{}: its shape tells of more than a file of this size may hold", where);
  const std::size_t bytes = count * header->element_bytes;
  left -= bytes;
  read_up_to(a, header->bytes + bytes + 1, npy, where);  // one more shows whether it ends there
  if (npy.size() != header->bytes + bytes) fail(Exit::io, "{}: not the {} bytes that its shape needs", where, bytes);
  NpzArray array{header->shape, std::vector<double>(count)};
  for (std::size_t i = 0; i < count; ++i) {
    const auto place = header->is_fortran ? fortran_place(i, header->shape) : i;
    array.values[i] = number_at(npy.data() + header->bytes + place * header->element_bytes, header->element_bytes);
  }
  return array;
}

}  // namespace

std::map<std::string, NpzArray> read_npz(const std::filesystem::path& file) {
  const ArchiveHandle a(archive_read_new());
  archive_read_support_format_zip(a.get());
  if (archive_read_open_filename(a.get(), file.c_str(), 64 << 10) != ARCHIVE_OK)
    fail(Exit::io, "{}: {}", file.string(), words_for_error(a.get()));
  std::map<std::string, NpzArray> arrays;
  std::uint64_t left = std::max(most_bytes, most_times * std::filesystem::file_size(file));
  archive_entry* entry = nullptr;
  for (;;) {
    const int result = archive_read_next_header(a.get(), &entry);
    if (result == ARCHIVE_EOF) return arrays;
    if (result != ARCHIVE_OK) fail(Exit::io, "{}: {}", file.string(), words_for_error(a.get()));
    const char* const path = archive_entry_pathname(entry);
    if (!path) continue;  // a name that this locale cannot say
    std::string name = path;
    const auto where = fmt::format("{}: {}", file.string(), name);
    if (!name.ends_with(".npy")) continue;
    name.resize(name.size() - 4);
    if (auto array = read_array(a.get(), left, where)) arrays[name] = std::move(*array);
  }
}

}  // namespace millrace
