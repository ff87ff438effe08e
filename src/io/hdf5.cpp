#include "millrace/io/hdf5.h"

#include <hdf5.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "millrace/core/storage_error.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

constexpr std::size_t chunk_bytes = 64 << 10;       // small, since readers of splits take single rows
constexpr std::size_t max_text_bytes = 1ull << 30;  // of one call: a length field may say anything
constexpr int max_dimensions = 8;

// Held by every call. The library leaves nothing to do at exit: all handles are ours, and after a full disk its own
// clean-up would not come to an end.
std::unique_lock<std::recursive_mutex> library() {
  static std::recursive_mutex mutex;
  static const bool ready = [] {
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    H5PLset_loading_state(0);
    return true;
  }();
  static_cast<void>(ready);
  return std::unique_lock(mutex);
}

// What went wrong, in the words of the innermost function that noticed.
std::string library_error() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* into) -> herr_t {
        auto& first = *static_cast<std::string*>(into);
        if (first.empty() && error->desc) first = error->desc;
        return 0;
      },
      &text);
  return text.empty() ? "HDF5 gives no reason" : text;
}

// The drivers say "..., errno = 5, error message = ..."; 0 where the file itself is at fault. (A path may say so too.)
int errno_in(const std::string& words) {
  constexpr std::string_view mark = "errno = ";
  const auto at = words.rfind(mark);
  return at == words.npos ? 0 : std::atoi(words.c_str() + at + mark.size());
}

// What the system has said tells more than the library's words around it. It is never an AccessError alone: a damaged
// file, too, makes the library read where the system refuses to.
[[noreturn]] void fail_library(const fs::path& path, std::string_view what) {
  const std::string words = library_error();
  const int code = errno_in(words);
  if (code == 0) throw Error(Exit::io, fmt::format("{}: {}: {}", path.string(), what, words));
  try {
    errno = code;
    fail_errno(std::string(what).c_str(), path);
  } catch (const StorageError&) {
    throw;
  } catch (const AccessError& error) {
    throw Error(Exit::io, error.what(), error.hint());
  }
}

herr_t check(herr_t result, const fs::path& path, std::string_view what) {
  if (result < 0) fail_library(path, what);
  return result;
}

// An identifier that closes itself.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close, const fs::path& path, std::string_view what) : id_(id), close_(close) {
    if (id < 0) fail_library(path, what);
  }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }
  herr_t close() { return id_ < 0 ? 0 : close_(std::exchange(id_, -1)); }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

// IEEE 754 half precision, which HDF5 1.10 has no name for; h5py reads it as float16.
Handle make_half(const fs::path& path) {
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, path, "cannot make a type");
  check(H5Tset_fields(type, 15, 10, 5, 0, 10), path, "cannot make a type");
  check(H5Tset_size(type, 2), path, "cannot make a type");
  check(H5Tset_ebias(type, 15), path, "cannot make a type");
  return type;
}

constexpr DType known_dtypes[] = {DType::f16, DType::f32, DType::i32, DType::i64, DType::u8};

Handle make_type(DType dtype, const fs::path& path) {
  switch (dtype) {
    case DType::f16:
      return make_half(path);
    case DType::f32:
      return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose, path, "cannot make a type"};
    case DType::i32:
      return {H5Tcopy(H5T_STD_I32LE), H5Tclose, path, "cannot make a type"};
    case DType::i64:
      return {H5Tcopy(H5T_STD_I64LE), H5Tclose, path, "cannot make a type"};
    case DType::u8:
      return {H5Tcopy(H5T_STD_U8LE), H5Tclose, path, "cannot make a type"};
    default:
      fail(Exit::bug, "{}: {} is not stored in HDF5", path.string(), to_string(dtype));
  }
}

Handle make_text_type(const fs::path& path) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose, path, "cannot make a type");
  check(H5Tset_size(type, H5T_VARIABLE), path, "cannot make a type");
  check(H5Tset_cset(type, H5T_CSET_UTF8), path, "cannot make a type");
  return type;
}

Handle make_space(const std::vector<hsize_t>& dims, const std::vector<hsize_t>& most, const fs::path& path) {
  return {H5Screate_simple(static_cast<int>(dims.size()), dims.data(), most.data()), H5Sclose, path,
          "cannot make a data space"};
}

// How files are opened: locks fail on some network file systems, and ours have one writer.
Handle make_access(const fs::path& path) {
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path, "cannot set up access");
  check(H5Pset_file_locking(access, false, true), path, "cannot set up access");
  check(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG), path, "cannot set up access");
  return access;
}

std::size_t product(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const auto side : shape) count *= static_cast<std::size_t>(side);
  return count;
}

// Selects rows [first, first + count) of a data set with these dimensions; returns the space in memory.
Handle select_rows(hid_t file_space, std::vector<hsize_t> dims, std::uint64_t first, std::uint64_t count,
                   const fs::path& path) {
  std::vector<hsize_t> start(dims.size(), 0);
  start[0] = first;
  dims[0] = count;
  check(H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start.data(), nullptr, dims.data(), nullptr), path,
        "cannot choose rows");
  return make_space(dims, dims, path);
}

}  // namespace

void begin_hdf5() {
  const auto lock = library();
}

// Writer -----------------------------------------------------------------------------------------------------------

struct Hdf5Writer::Impl {
  struct Dataset {
    Handle id, type;
    std::vector<hsize_t> dims;  // dims[0] = rows so far
    std::size_t row_bytes = 0;  // 0 = text
  };

  explicit Impl(const fs::path& path) : path(path) {
    const Handle access = make_access(path);
    file = Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose, path, "cannot create");
  }

  ~Impl() {
    const auto lock = library();
    datasets.clear();
    file.close();
  }

  void create(const std::string& name, Handle type, const std::vector<std::int64_t>& row_shape, std::size_t row_bytes) {
    std::vector<hsize_t> dims(row_shape.begin(), row_shape.end());
    dims.insert(dims.begin(), 0);
    auto most = dims, chunk = dims;
    most[0] = H5S_UNLIMITED;
    chunk[0] = std::clamp<hsize_t>(chunk_bytes / std::max<std::size_t>(row_bytes, 16), 1, 1024);
    const Handle space = make_space(dims, most, path);
    const Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, path, "cannot set up a data set");
    check(H5Pset_chunk(layout, static_cast<int>(chunk.size()), chunk.data()), path, "cannot set up a data set");
    check(H5Pset_obj_track_times(layout, false), path, "cannot set up a data set");
    Handle id(H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, layout, H5P_DEFAULT), H5Dclose, path,
              "cannot create data set " + name);
    ensure(datasets.emplace(name, Dataset{std::move(id), std::move(type), dims, row_bytes}).second,
           "a data set is created once");
  }

  void append(Dataset& dataset, std::uint64_t rows, const void* values) {
    const std::uint64_t first = dataset.dims[0];
    dataset.dims[0] += rows;
    check(H5Dset_extent(dataset.id, dataset.dims.data()), path, "cannot write");
    const Handle space(H5Dget_space(dataset.id), H5Sclose, path, "cannot write");
    const Handle memory = select_rows(space, dataset.dims, first, rows, path);
    check(H5Dwrite(dataset.id, dataset.type, memory, space, H5P_DEFAULT, values), path, "cannot write");
  }

  const fs::path path;
  Handle file;
  std::map<std::string, Dataset> datasets;
};

Hdf5Writer::Hdf5Writer(const fs::path& path) {
  const auto lock = library();
  impl_ = std::make_unique<Impl>(path);
}
Hdf5Writer::~Hdf5Writer() = default;
Hdf5Writer::Hdf5Writer(Hdf5Writer&&) noexcept = default;
Hdf5Writer& Hdf5Writer::operator=(Hdf5Writer&&) noexcept = default;

void Hdf5Writer::create(const std::string& name, DType dtype, const std::vector<std::int64_t>& row_shape) {
  const auto lock = library();
  impl_->create(name, make_type(dtype, impl_->path), row_shape, product(row_shape) * size_of(dtype));
}

void Hdf5Writer::create_text(const std::string& name) {
  const auto lock = library();
  impl_->create(name, make_text_type(impl_->path), {}, 0);
}

void Hdf5Writer::append(const std::string& name, std::span<const std::byte> rows) {
  const auto lock = library();
  auto& dataset = impl_->datasets.at(name);
  ensure(dataset.row_bytes > 0 && rows.size() % dataset.row_bytes == 0, "numbers are appended in whole rows");
  if (!rows.empty()) impl_->append(dataset, rows.size() / dataset.row_bytes, rows.data());
}

void Hdf5Writer::append_text(const std::string& name, std::span<const std::string> rows) {
  if (rows.empty()) return;
  const auto lock = library();
  std::vector<std::string> clean(rows.begin(), rows.end());
  std::vector<const char*> pointers;
  for (std::string& text : clean) {
    text = without_nul(std::move(text));
    pointers.push_back(text.c_str());
  }
  impl_->append(impl_->datasets.at(name), rows.size(), pointers.data());
}

void Hdf5Writer::set_attribute(const std::string& name, const std::string& text) {
  const auto lock = library();
  const auto& path = impl_->path;
  const Handle type = make_text_type(path);
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose, path, "cannot make an attribute");
  const Handle id(H5Acreate2(impl_->file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, path,
                  "cannot make attribute " + name);
  const char* value = text.c_str();
  check(H5Awrite(id, type, &value), path, "cannot write attribute " + name);
}

void Hdf5Writer::close() {
  const auto lock = library();
  for (auto& [name, dataset] : impl_->datasets) check(dataset.id.close(), impl_->path, "cannot write");
  check(impl_->file.close(), impl_->path, "cannot write");
}

// Reader -----------------------------------------------------------------------------------------------------------

namespace {

// Memory for texts while the library reads them, up to a limit.
struct TextMemory {
  std::size_t left = max_text_bytes;

  static void* take(std::size_t bytes, void* self) {
    auto& memory = *static_cast<TextMemory*>(self);
    if (bytes > memory.left) return nullptr;
    memory.left -= bytes;
    return std::malloc(bytes);
  }
  static void give(void* block, void*) { std::free(block); }
};

bool is_text(hid_t type) {
  return H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) > 0;
}

}  // namespace

struct Hdf5Reader::Impl {
  struct Dataset {
    Handle id, type;
    std::optional<DType> dtype;
    std::vector<hsize_t> dims;
  };

  explicit Impl(const fs::path& path) : path(path) {
    const Handle access = make_access(path);
    file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose, path, "cannot open");
    bytes = present_bytes();
  }

  ~Impl() {
    const auto lock = library();
    datasets.clear();
    file.close();
  }

  off_t present_bytes() const {
    void* descriptor = nullptr;
    check(H5Fget_vfd_handle(file, H5P_DEFAULT, &descriptor), path, "cannot look at");
    struct stat status {};
    if (::fstat(*static_cast<const int*>(descriptor), &status) != 0) fail_errno("cannot look at", path);
    return status.st_size;
  }

  // Behind each read: what lies beyond the end of the file, the library fills with zeros, and says no word of it.
  void expect_whole() const {
    if (present_bytes() < bytes) fail_shortened(path);
  }

  const Dataset& find(const std::string& name) {
    const auto found = datasets.find(name);
    if (found != datasets.end()) return found->second;
    return datasets.emplace(name, open(name)).first->second;
  }

  Dataset open(const std::string& name) const {
    const auto what = "data set " + name;
    H5L_info_t link{};
    check(H5Lget_info(file, name.c_str(), &link, H5P_DEFAULT), path, "no " + what);
    if (link.type != H5L_TYPE_HARD) fail(Exit::io, "{}: {} is a link to elsewhere", path.string(), what);
    Dataset dataset;
    dataset.id = Handle(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, path, "cannot open " + what);
    check_layout(dataset.id, what);
    dataset.type = Handle(H5Dget_type(dataset.id), H5Tclose, path, what);
    dataset.dtype = dtype_of(dataset.type, what);
    if (!dataset.dtype) dataset.type = make_text_type(path);
    const Handle space(H5Dget_space(dataset.id), H5Sclose, path, what);
    const int rank = H5Sget_simple_extent_ndims(space);
    if (H5Sget_simple_extent_type(space) != H5S_SIMPLE || rank < 1 || rank > max_dimensions)
      fail(Exit::io, "{}: {} has {} dimensions", path.string(), what, rank);
    dataset.dims.resize(static_cast<std::size_t>(rank));
    check(H5Sget_simple_extent_dims(space, dataset.dims.data(), nullptr), path, what);
    const std::vector<std::int64_t> shape(dataset.dims.begin(), dataset.dims.end());
    if (!try_byte_count(dataset.dtype.value_or(DType::i64), shape))
      fail(Exit::io, "{}: {} is impossibly large", path.string(), what);
    return dataset;
  }

  void check_layout(hid_t id, const std::string& what) const {
    const Handle layout(H5Dget_create_plist(id), H5Pclose, path, what);
    const auto kind = H5Pget_layout(layout);
    if ((kind != H5D_CONTIGUOUS && kind != H5D_CHUNKED && kind != H5D_COMPACT) || H5Pget_external_count(layout) != 0)
      fail(Exit::io, "{}: {} does not lie in the file itself", path.string(), what);
    for (int i = 0; i < H5Pget_nfilters(layout); ++i) {
      unsigned flags = 0;
      std::size_t values = 0;
      const auto filter =
          H5Pget_filter2(layout, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, nullptr);
      if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
        fail(Exit::io, "{}: {} needs filter {}, which is not among those read here", path.string(), what, filter);
    }
  }

  std::optional<DType> dtype_of(hid_t type, const std::string& what) const {
    if (is_text(type)) return std::nullopt;
    for (const DType dtype : known_dtypes)
      if (H5Tequal(type, make_type(dtype, path)) > 0) return dtype;
    fail(Exit::io, "{}: {} has a type that is not read here", path.string(), what);
  }

  // Checks the range and selects it.
  std::pair<Handle, Handle> choose(const std::string& name, const Dataset& dataset, std::uint64_t first,
                                   std::uint64_t count) const {
    if (first > dataset.dims[0] || count > dataset.dims[0] - first)
      fail(Exit::io, "{}: data set {} has {} rows, row {} was asked for", path.string(), name, dataset.dims[0],
           first + count - 1);
    Handle space(H5Dget_space(dataset.id), H5Sclose, path, "cannot read " + name);
    Handle memory = select_rows(space, dataset.dims, first, count, path);
    return {std::move(space), std::move(memory)};
  }

  const fs::path path;
  Handle file;
  off_t bytes = 0;  // of the file, when it was opened
  std::map<std::string, Dataset> datasets;
};

Hdf5Reader::Hdf5Reader(const fs::path& path) {
  const auto lock = library();
  impl_ = std::make_unique<Impl>(path);
}
Hdf5Reader::~Hdf5Reader() = default;
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;
Hdf5Reader& Hdf5Reader::operator=(Hdf5Reader&&) noexcept = default;

Hdf5Shape Hdf5Reader::shape(const std::string& name) const {
  const auto lock = library();
  const auto& dataset = impl_->find(name);
  return {dataset.dtype, {dataset.dims.begin(), dataset.dims.end()}};
}

std::uint64_t Hdf5Reader::expect(const std::string& name, std::optional<DType> dtype,
                                 const std::vector<std::int64_t>& row_shape) const {
  const auto found = shape(name);
  const std::vector<std::int64_t> rows(found.shape.begin() + 1, found.shape.end());
  const auto word = [](std::optional<DType> type) { return type ? to_string(*type) : "text"; };
  if (found.dtype != dtype || rows != row_shape)
    fail(Exit::io, "{}: data set {} holds {} in rows of {} numbers and {} dimensions, expected {} and {}",
         impl_->path.string(), name, word(found.dtype), product(rows), rows.size(), word(dtype), product(row_shape));
  return static_cast<std::uint64_t>(found.shape[0]);
}

void Hdf5Reader::read(const std::string& name, std::uint64_t first, std::uint64_t count,
                      std::span<std::byte> out) const {
  const auto lock = library();
  const auto& dataset = impl_->find(name);
  if (!dataset.dtype) fail(Exit::io, "{}: data set {} holds text, not numbers", impl_->path.string(), name);
  std::size_t row_bytes = size_of(*dataset.dtype);
  for (std::size_t i = 1; i < dataset.dims.size(); ++i) row_bytes *= dataset.dims[i];
  ensure(out.size() == row_bytes * count, "memory for rows of another shape");
  if (out.empty()) return;
  const auto [space, memory] = impl_->choose(name, dataset, first, count);
  check(H5Dread(dataset.id, dataset.type, memory, space, H5P_DEFAULT, out.data()), impl_->path, "cannot read " + name);
  impl_->expect_whole();
}

std::vector<std::string> Hdf5Reader::read_text(const std::string& name, std::uint64_t first,
                                               std::uint64_t count) const {
  const auto lock = library();
  const auto& path = impl_->path;
  const auto& dataset = impl_->find(name);
  if (dataset.dtype || dataset.dims.size() != 1)
    fail(Exit::io, "{}: data set {} is no list of texts", path.string(), name);
  if (count == 0) return {};
  const auto [space, memory] = impl_->choose(name, dataset, first, count);
  TextMemory text_memory;
  const Handle transfer(H5Pcreate(H5P_DATASET_XFER), H5Pclose, path, "cannot read " + name);
  check(H5Pset_vlen_mem_manager(transfer, TextMemory::take, &text_memory, TextMemory::give, nullptr), path, name);
  std::vector<char*> pointers(count, nullptr);
  const auto result = H5Dread(dataset.id, dataset.type, memory, space, transfer, pointers.data());
  std::vector<std::string> texts;
  for (char* text : pointers) {
    texts.emplace_back(text ? text : "");
    std::free(text);
  }
  check(result, path, "cannot read " + name);
  impl_->expect_whole();
  return texts;
}

}  // namespace millrace
