#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/core/files.h"
#include "millrace/io/dtype.h"

// HDF5 files of the plain kind: data sets of numbers or text in the root group, and text attributes. The serial C API
// is not made for threads, so all calls of the process take turns. Errors are Error(io) with the file and the library's
// own words.
//
// NOTE [Trust]: HDF5 1.10 has known holes in its parser. Open only files whose digest was checked before.
namespace millrace {

// Begins the library, which otherwise happens with the first file. A parallel build that finds MPI up then calls it,
// from whatever thread that is and again while MPI ends: so this comes before MPI.
void begin_hdf5();

// Makes one file from front to back; complete only after `close`. The same calls make the same bytes.
class Hdf5Writer {
 public:
  explicit Hdf5Writer(const fs::path& path);  // replaces a file of that name
  ~Hdf5Writer();
  Hdf5Writer(Hdf5Writer&&) noexcept;
  Hdf5Writer& operator=(Hdf5Writer&&) noexcept;

  // A data set (rows, row_shape...) that starts empty. dtype: f16, f32, i32, i64 or u8.
  void create(const std::string& name, DType dtype, const std::vector<std::int64_t>& row_shape = {});
  // A data set (rows) of UTF-8 text of any length.
  void create_text(const std::string& name);
  // Whole rows behind the last one, dense.
  void append(const std::string& name, std::span<const std::byte> rows);
  // HDF5 ends a text at its first NUL, so NULs become U+FFFD.
  void append_text(const std::string& name, std::span<const std::string> rows);
  void set_attribute(const std::string& name, const std::string& text);
  // Everything is with the operating system afterwards.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Hdf5Shape {
  std::optional<DType> dtype;  // none = text
  std::vector<std::int64_t> shape;
};

// Reads data sets that lie in the file itself: links to other files, virtual data sets, external storage, filters of
// plugins and types without a DType are refused.
class Hdf5Reader {
 public:
  explicit Hdf5Reader(const fs::path& path);
  ~Hdf5Reader();
  Hdf5Reader(Hdf5Reader&&) noexcept;
  Hdf5Reader& operator=(Hdf5Reader&&) noexcept;

  Hdf5Shape shape(const std::string& name) const;
  // Rows of data set `name`; Error(io) unless it is (rows, row_shape...) of `dtype` (none = text).
  std::uint64_t expect(const std::string& name, std::optional<DType> dtype,
                       const std::vector<std::int64_t>& row_shape = {}) const;
  // Rows [first, first + count) into `out`, which they must fill.
  void read(const std::string& name, std::uint64_t first, std::uint64_t count, std::span<std::byte> out) const;
  std::vector<std::string> read_text(const std::string& name, std::uint64_t first, std::uint64_t count) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
