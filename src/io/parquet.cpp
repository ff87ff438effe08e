#include "millrace/io/parquet.h"

#include <arrow/api.h>
#include <arrow/util/float16.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "limited_pool.h"
#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/io/half.h"
#include "millrace/io/net/urls.h"
#include "parquet_input.h"

namespace millrace {

namespace {

// Rows decoded at once: enough to amortise a call, few enough for columns of images, and of tensors.
constexpr std::int64_t batch_rows = 64, tensor_batch_rows = 8;

// Arrow speaks of its own set-up where a file is encrypted.
[[noreturn]] void fail_reading(const std::string& path, std::string_view why) {
  static constexpr std::array<std::string_view, 3> words = {"encrypted metadata", "Cannot decrypt",
                                                            "noted as encrypted"};
  const auto said = [&](std::string_view phrase) { return why.find(phrase) != why.npos; };
  if (std::any_of(words.begin(), words.end(), said)) fail(Exit::io, "{} is encrypted, which is not read here", path);
  fail(Exit::io, "{}: {}", path, why);
}

void check(const arrow::Status& status, const std::string& path) {
  if (!status.ok()) fail_reading(path, status.message());
}

template <class T>
T check(arrow::Result<T> result, const std::string& path) {
  check(result.status(), path);
  return std::move(result).ValueUnsafe();
}

bool is_uuid(const arrow::DataType& type) {
  return type.id() == arrow::Type::EXTENSION &&
         static_cast<const arrow::ExtensionType&>(type).extension_name() == "arrow.uuid";
}

// What rows hold: of a dictionary its values, of an extension type what it is stored as. A UUID is a value of its own,
// since nobody writes the 16 bytes that it is stored as.
const arrow::DataType& value_type(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY)
    return value_type(*static_cast<const arrow::DictionaryType&>(type).value_type());
  if (type.id() == arrow::Type::EXTENSION && !is_uuid(type))
    return value_type(*static_cast<const arrow::ExtensionType&>(type).storage_type());
  return type;
}

const std::shared_ptr<arrow::Array>& storage_of(const arrow::Array& array) {
  return static_cast<const arrow::ExtensionArray&>(array).storage();
}

bool is_bytes(const arrow::DataType& column) {
  const arrow::DataType& type = value_type(column);
  return arrow::is_base_binary_like(type.id()) || arrow::is_binary_view_like(type.id()) ||
         type.id() == arrow::Type::FIXED_SIZE_BINARY;
}

std::int32_t fixed_size_of(const arrow::DataType& list) {
  return static_cast<const arrow::FixedSizeListType&>(list).list_size();
}

// The same values with text seen as bytes, which may be any.
std::shared_ptr<arrow::Array> as_bytes(const std::shared_ptr<arrow::Array>& array) {
  auto data = array->data()->Copy();
  switch (array->type_id()) {
    case arrow::Type::STRING:
      data->type = arrow::binary();
      break;
    case arrow::Type::LARGE_STRING:
      data->type = arrow::large_binary();
      break;
    case arrow::Type::STRING_VIEW:
      data->type = arrow::binary_view();
      break;
    case arrow::Type::EXTENSION:
      return as_bytes(storage_of(*array));
    case arrow::Type::DICTIONARY: {
      const auto& type = static_cast<const arrow::DictionaryType&>(*array->type());
      const auto values = as_bytes(static_cast<const arrow::DictionaryArray&>(*array).dictionary());
      data->type = arrow::dictionary(type.index_type(), values->type(), type.ordered());
      data->dictionary = values->data();
      break;
    }
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: {
      const auto values = as_bytes(arrow::MakeArray(data->child_data[0]));
      data->child_data[0] = values->data();
      data->type = array->type_id() == arrow::Type::LIST ? arrow::list(values->type())
                   : array->type_id() == arrow::Type::LARGE_LIST
                       ? arrow::large_list(values->type())
                       : arrow::fixed_size_list(values->type(), fixed_size_of(*array->type()));
      break;
    }
    case arrow::Type::MAP: {
      const auto& type = static_cast<const arrow::MapType&>(*array->type());
      const auto entries = as_bytes(arrow::MakeArray(data->child_data[0]));
      data->child_data[0] = entries->data();
      data->type = std::make_shared<arrow::MapType>(type.value_field()->WithType(entries->type()), type.keys_sorted());
      break;
    }
    case arrow::Type::STRUCT: {
      auto fields = array->type()->fields();
      for (std::size_t i = 0; i < fields.size(); ++i) {
        const auto member = as_bytes(arrow::MakeArray(data->child_data[i]));
        data->child_data[i] = member->data();
        fields[i] = fields[i]->WithType(member->type());
      }
      data->type = arrow::struct_(fields);
      break;
    }
    default:
      return array;
  }
  return arrow::MakeArray(data);
}

// Offsets, lengths and indices, so that no value lies outside of its buffer. Not whether text is UTF-8, which Arrow's
// own check of a whole batch includes: one bad character would cost all rows of the file that come after it.
arrow::Status validate(const arrow::RecordBatch& batch) {
  for (const auto& column : batch.columns()) ARROW_RETURN_NOT_OK(as_bytes(column)->ValidateFull());
  return arrow::Status::OK();
}

bool is_struct_with_bytes(const arrow::DataType& column) {
  const arrow::DataType& type = value_type(column);
  if (type.id() != arrow::Type::STRUCT) return false;
  const auto field = static_cast<const arrow::StructType&>(type).GetFieldByName("bytes");
  return field && is_bytes(*field->type());
}

// Leaf columns below a field; of a struct with `bytes` that member alone, so that the others are never decoded.
void collect_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.column_index >= 0) leaves.push_back(field.column_index);
  const bool only_bytes = is_struct_with_bytes(*field.field->type());
  for (const auto& child : field.children) {
    if (!only_bytes || child.field->name() == "bytes") collect_leaves(child, leaves);
  }
}

template <class Array>
auto value_of(const arrow::Array& array, std::int64_t row) {
  return static_cast<const Array&>(array).Value(row);
}

Cell text_of(const arrow::Array& array, std::int64_t row) {
  const auto scalar = array.GetScalar(row);
  return scalar.ok() ? (*scalar)->ToString() : std::string();
}

// 8-4-4-4-12 digits.
std::string uuid_at(const arrow::Array& array, std::int64_t row) {
  const auto bytes = static_cast<const arrow::FixedSizeBinaryArray&>(*storage_of(array)).GetView(row);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(bytes[i]));
  }
  return text;
}

bool is_text(const arrow::DataType& column) {
  const arrow::DataType& type = value_type(column);
  return arrow::is_string(type.id()) || type.id() == arrow::Type::STRING_VIEW;
}

bool is_text_list(const arrow::DataType& column) {
  const arrow::DataType& type = value_type(column);
  const bool is_list = type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
                       type.id() == arrow::Type::FIXED_SIZE_LIST;
  return is_list && is_text(*static_cast<const arrow::BaseListType&>(type).value_type());
}

ColumnHolds what_holds(const arrow::DataType& column) {
  if (is_text(column)) return ColumnHolds::text;
  if (is_bytes(column) || is_struct_with_bytes(column)) return ColumnHolds::bytes;
  if (is_text_list(column)) return ColumnHolds::texts;
  if (value_type(column).id() == arrow::Type::NA) return ColumnHolds::nothing;
  return arrow::is_nested(value_type(column).id()) ? ColumnHolds::nested : ColumnHolds::other;
}

// What cell_at makes of the values.
ParquetType cell_type(const arrow::DataType& column) {
  const arrow::Type::type id = value_type(column).id();
  if (id == arrow::Type::BOOL) return ParquetType::boolean;
  if (id == arrow::Type::UINT64) return ParquetType::uint64;
  if (arrow::is_integer(id)) return ParquetType::int64;
  const bool is_real = arrow::is_floating(id) || id == arrow::Type::DECIMAL128 || id == arrow::Type::DECIMAL256;
  return is_real ? ParquetType::float64 : ParquetType::text;
}

using OrderedJson = nlohmann::ordered_json;  // members of a struct as the file has them

Cell cell_at(const arrow::Array& array, std::int64_t row);
OrderedJson json_at(const arrow::Array& array, std::int64_t row);

template <class List>
OrderedJson json_of_list(const arrow::Array& array, std::int64_t row) {
  const auto& list = static_cast<const List&>(array);
  OrderedJson items = OrderedJson::array();
  for (std::int64_t i = list.value_offset(row); i < list.value_offset(row) + list.value_length(row); ++i)
    items.push_back(json_at(*list.values(), i));
  return items;
}

// Pairs, as pyarrow and img2dataset have it: keys may be no texts, and may come twice.
OrderedJson json_of_map(const arrow::Array& array, std::int64_t row) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  const auto& entries = static_cast<const arrow::StructArray&>(*map.values());
  OrderedJson pairs = OrderedJson::array();
  for (std::int64_t i = map.value_offset(row); i < map.value_offset(row) + map.value_length(row); ++i)
    pairs.push_back(OrderedJson::array({json_at(*entries.field(0), i), json_at(*entries.field(1), i)}));
  return pairs;
}

OrderedJson json_of_struct(const arrow::Array& array, std::int64_t row) {
  const auto& members = static_cast<const arrow::StructArray&>(array);
  OrderedJson object = OrderedJson::object();
  for (int i = 0; i < members.num_fields(); ++i)
    object[members.struct_type()->field(i)->name()] = json_at(*members.field(i), row);
  return object;
}

OrderedJson json_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return nullptr;
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return json_of_list<arrow::ListArray>(array, row);
    case arrow::Type::LARGE_LIST:
      return json_of_list<arrow::LargeListArray>(array, row);
    case arrow::Type::FIXED_SIZE_LIST:
      return json_of_list<arrow::FixedSizeListArray>(array, row);
    case arrow::Type::MAP:
      return json_of_map(array, row);
    case arrow::Type::STRUCT:
      return json_of_struct(array, row);
    case arrow::Type::EXTENSION:
      if (!is_uuid(*array.type())) return json_at(*storage_of(array), row);
      return uuid_at(array, row);
    default:
      if (is_bytes(*array.type()) && !is_text(*array.type())) return nullptr;  // JSON has no bytes
      return to_json(cell_at(array, row));
  }
}

template <class Array, class Decimal>
double decimal_at(const arrow::Array& array, std::int64_t row) {
  const auto scale = static_cast<const arrow::DecimalType&>(*array.type()).scale();
  return Decimal(static_cast<const Array&>(array).GetValue(row)).ToDouble(scale);
}

Cell cell_at(const arrow::Array& array, std::int64_t row) {
  if (array.IsNull(row)) return std::monostate();
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return value_of<arrow::BooleanArray>(array, row);
    case arrow::Type::INT8:
      return std::int64_t{value_of<arrow::Int8Array>(array, row)};
    case arrow::Type::INT16:
      return std::int64_t{value_of<arrow::Int16Array>(array, row)};
    case arrow::Type::INT32:
      return std::int64_t{value_of<arrow::Int32Array>(array, row)};
    case arrow::Type::INT64:
      return std::int64_t{value_of<arrow::Int64Array>(array, row)};
    case arrow::Type::UINT8:
      return std::int64_t{value_of<arrow::UInt8Array>(array, row)};
    case arrow::Type::UINT16:
      return std::int64_t{value_of<arrow::UInt16Array>(array, row)};
    case arrow::Type::UINT32:
      return std::int64_t{value_of<arrow::UInt32Array>(array, row)};
    case arrow::Type::UINT64:
      return whole_number(value_of<arrow::UInt64Array>(array, row));
    case arrow::Type::HALF_FLOAT:
      return arrow::util::Float16::FromBits(value_of<arrow::HalfFloatArray>(array, row)).ToDouble();
    case arrow::Type::FLOAT:
      return double{value_of<arrow::FloatArray>(array, row)};
    case arrow::Type::DOUBLE:
      return value_of<arrow::DoubleArray>(array, row);
    case arrow::Type::DECIMAL128:
      return decimal_at<arrow::Decimal128Array, arrow::Decimal128>(array, row);
    case arrow::Type::DECIMAL256:
      return decimal_at<arrow::Decimal256Array, arrow::Decimal256>(array, row);
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
      return std::string(static_cast<const arrow::BinaryViewArray&>(array).GetView(row));
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return std::string(static_cast<const arrow::BinaryArray&>(array).GetView(row));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return std::string(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
    case arrow::Type::FIXED_SIZE_BINARY:
      return std::string(static_cast<const arrow::FixedSizeBinaryArray&>(array).GetView(row));
    case arrow::Type::DICTIONARY: {
      const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
      return cell_at(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST:
    case arrow::Type::MAP:
      return JsonText{dump_any(json_at(array, row))};
    case arrow::Type::STRUCT: {
      const auto bytes = static_cast<const arrow::StructArray&>(array).GetFieldByName("bytes");
      return bytes && is_bytes(*bytes->type()) ? cell_at(*bytes, row) : JsonText{dump_any(json_at(array, row))};
    }
    case arrow::Type::EXTENSION:
      return is_uuid(*array.type()) ? Cell(uuid_at(array, row)) : cell_at(*storage_of(array), row);
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DURATION:
      return text_of(array, row);
    default:  // no file has others that Arrow reads today; what it prints of an array must not become a caption
      throw parquet::ParquetException("values of type ", array.type()->ToString(), " are not read here");
  }
}

// The numbers of elements [begin, end), lists in them unfolded; false for what holds no floating-point numbers.
bool append_floats(const arrow::Array& array, std::int64_t begin, std::int64_t end, std::vector<float>& floats);

template <class List>
bool append_items(const arrow::Array& array, std::int64_t begin, std::int64_t end, std::vector<float>& floats) {
  const auto& list = static_cast<const List&>(array);
  return append_floats(*list.values(), list.value_offset(begin), list.value_offset(end), floats);
}

template <class Array, class ToFloat>
bool append_values(const arrow::Array& array, std::int64_t begin, std::int64_t end, std::vector<float>& floats,
                   ToFloat to_float) {
  const auto& values = static_cast<const Array&>(array);
  for (std::int64_t i = begin; i < end; ++i)
    floats.push_back(values.IsNull(i) ? std::numeric_limits<float>::quiet_NaN() : to_float(values.Value(i)));
  return true;
}

bool append_floats(const arrow::Array& array, std::int64_t begin, std::int64_t end, std::vector<float>& floats) {
  const auto narrow = [](auto value) { return static_cast<float>(value); };
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return append_items<arrow::ListArray>(array, begin, end, floats);
    case arrow::Type::LARGE_LIST:
      return append_items<arrow::LargeListArray>(array, begin, end, floats);
    case arrow::Type::FIXED_SIZE_LIST:
      return append_items<arrow::FixedSizeListArray>(array, begin, end, floats);
    case arrow::Type::EXTENSION:
      return append_floats(*storage_of(array), begin, end, floats);
    case arrow::Type::STRUCT: {  // Ray's tensors of varying shape: data and shape
      const auto data = static_cast<const arrow::StructArray&>(array).GetFieldByName("data");
      return data && append_floats(*data, begin, end, floats);
    }
    case arrow::Type::HALF_FLOAT:
      return append_values<arrow::HalfFloatArray>(array, begin, end, floats, from_half);
    case arrow::Type::FLOAT:
      return append_values<arrow::FloatArray>(array, begin, end, floats, narrow);
    case arrow::Type::DOUBLE:
      return append_values<arrow::DoubleArray>(array, begin, end, floats, narrow);
    default:
      return false;
  }
}

// A list as the bytes of its numbers, everything else as it is.
Cell tensor_or_cell_at(const arrow::Array& array, std::int64_t row) {
  std::vector<float> floats;
  const bool single = arrow::is_floating(value_type(*array.type()).id());
  if (single || array.IsNull(row) || !append_floats(array, row, row + 1, floats)) return cell_at(array, row);
  return std::string(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
}

}  // namespace

class ParquetReader::Impl {
  // Parts of the Parquet library report by exception, others by status; what was the storage's fault counts as that.
  template <class Call>
  auto guarded(Call call) -> decltype(call()) {
    try {
      return call();
    } catch (const parquet::ParquetException& error) {
      if (input_) input_->check_storage();
      fail_reading(path_, error.what());
    } catch (const Error&) {
      if (input_) input_->check_storage();
      throw;
    }
  }

 public:
  Impl(const std::string& path, const std::vector<std::string>& columns, ParquetLists lists, std::int64_t max_bytes)
      : path_(path), lists_(lists), pool_(arrow::system_memory_pool(), max_bytes) {
    guarded([&] {
      open();
      std::shared_ptr<arrow::Schema> schema;
      check(reader_->GetSchema(&schema), path_);
      for (const auto& field : schema->fields()) {
        const arrow::DataType& type = *field->type();
        schema_.push_back(
            {field->name(), type.ToString(), what_holds(type), is_struct_with_bytes(type), cell_type(type)});
      }
      choose(columns);
    });
  }

  const std::vector<ParquetColumn>& schema() const { return schema_; }
  std::uint64_t rows() const { return static_cast<std::uint64_t>(metadata().num_rows()); }

  std::optional<std::vector<Cell>> next() {
    pass_over();
    if (!fill()) return std::nullopt;
    std::vector<Cell> cells;
    const auto read = lists_ == ParquetLists::floats ? tensor_or_cell_at : cell_at;
    guarded([&] {
      for (const int column : batch_columns_) cells.push_back(read(*batch_->column(column), row_));
    });
    ++row_;
    ++passed_;
    return cells;
  }

  // The next row that is wanted decides which row groups need not be read: skips add up until then.
  std::uint64_t skip(std::uint64_t rows) {
    const auto step = std::min(rows, this->rows() - passed_);
    passed_ += step;
    to_skip_ += step;
    return step;
  }

  std::uint64_t passed() const { return passed_; }

 private:
  void open() {
    parquet::ReaderProperties properties(&pool_);
    properties.enable_buffered_stream();              // pages as they are needed, not a column's whole chunk
    properties.set_page_checksum_verification(true);  // where pages have them
    properties.set_buffer_size(is_s3(path_) ? 8 << 20 : 1 << 20);
    parquet::ArrowReaderProperties arrow_properties(false);
    arrow_properties.set_batch_size(lists_ == ParquetLists::floats ? tensor_batch_rows : batch_rows);
    arrow_properties.set_pre_buffer(false);
    arrow_properties.set_arrow_extensions_enabled(true);  // UUIDs, also of writers that know Parquet alone
    parquet::arrow::FileReaderBuilder builder;
    input_ = std::make_shared<ParquetInput>(path_, &pool_);
    check(builder.Open(input_, properties), path_);
    check(builder.memory_pool(&pool_)->properties(arrow_properties)->Build(&reader_), path_);
  }

  const parquet::FileMetaData& metadata() const { return *metadata_; }

  void choose(const std::vector<std::string>& columns) {
    metadata_ = reader_->parquet_reader()->metadata();
    std::vector<std::string> chosen = columns;
    if (chosen.empty()) {
      for (const ParquetColumn& column : schema_) chosen.push_back(column.name);
    }
    std::vector<std::size_t> fields;
    for (const std::string& name : chosen) fields.push_back(position_of(name));
    // Arrow hands out the chosen columns in the file's order, whatever the order asked for.
    std::vector<std::size_t> sorted = fields;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (const std::size_t field : sorted) collect_leaves(reader_->manifest().schema_fields[field], leaves_);
    for (const std::size_t field : fields) {
      batch_columns_.push_back(
          static_cast<int>(std::lower_bound(sorted.begin(), sorted.end(), field) - sorted.begin()));
    }
  }

  std::size_t position_of(const std::string& name) const {
    const auto found = std::ranges::find(schema_, name, &ParquetColumn::name);
    if (found != schema_.end()) return static_cast<std::size_t>(found - schema_.begin());
    std::vector<std::string> names;
    for (const ParquetColumn& column : schema_) names.push_back(column.name);
    throw Error(Exit::io, fmt::format("{} has no column '{}'", path_, name),
                fmt::format("its columns are {}", fmt::join(names, ", ")));
  }

  void pass_over() try {
    while (to_skip_ > 0) {
      if (const std::uint64_t group_rows = untouched_group_rows(); group_rows > 0 && group_rows <= to_skip_) {
        ++group_;
        to_skip_ -= group_rows;
      } else if (fill()) {
        const auto step = std::min(to_skip_, static_cast<std::uint64_t>(batch_->num_rows() - row_));
        row_ += static_cast<std::int64_t>(step);
        to_skip_ -= step;
      } else {
        break;
      }
    }
  } catch (...) {
    passed_ -= std::exchange(to_skip_, 0);  // row() tells where it ends
    throw;
  }

  // Rows of the next row group when no row of the one before is left and this one has not been begun.
  std::uint64_t untouched_group_rows() const {
    const bool in_group = batches_ != nullptr || (batch_ && row_ < batch_->num_rows());
    if (in_group || group_ >= metadata().num_row_groups()) return 0;
    return static_cast<std::uint64_t>(metadata().RowGroup(group_)->num_rows());
  }

  // Makes row_ point to a row of batch_; false at the end of the file.
  bool fill() {
    return guarded([&] {
      while (!batch_ || row_ >= batch_->num_rows()) {
        if (!batches_) {
          if (group_ >= metadata().num_row_groups()) return false;
          left_in_group_ = metadata().RowGroup(group_)->num_rows();
          batches_ = check(reader_->GetRecordBatchReader({group_++}, leaves_), path_);
        }
        batch_.reset();
        row_ = 0;
        check(batches_->ReadNext(&batch_), path_);
        if (batch_) {
          check(validate(*batch_), path_);
          left_in_group_ -= batch_->num_rows();
        } else {
          batches_.reset();
          expect_whole_group();
        }
      }
      return true;
    });
  }

  // Where a file ends too early, Arrow ends the column there, and says no word of it.
  void expect_whole_group() const {
    if (left_in_group_ > 0 && !leaves_.empty())
      fail(Exit::io, "{}: row group {} lacks {} of its rows: was the file changed while it is in use?", path_,
           group_ - 1, left_in_group_);
  }

  std::string path_;
  const ParquetLists lists_;
  LimitedPool pool_;  // outlives what is allocated in it
  std::shared_ptr<ParquetInput> input_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::vector<ParquetColumn> schema_;
  std::vector<int> leaves_;                            // Parquet's columns to read
  std::vector<int> batch_columns_;                     // chosen column -> column of a batch
  int group_ = 0;                                      // the next row group to begin
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of the row group at hand
  std::int64_t left_in_group_ = 0;                     // rows behind batch_
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::int64_t row_ = 0;       // the next row of batch_
  std::uint64_t passed_ = 0;   // rows of the file before the one that next() gives
  std::uint64_t to_skip_ = 0;  // of them, from row_ on
};

ParquetReader::ParquetReader(const std::string& path, std::vector<std::string> columns, ParquetLists lists,
                             std::int64_t max_bytes)
    : impl_(std::make_unique<Impl>(path, columns, lists, max_bytes)) {}
ParquetReader::~ParquetReader() = default;
ParquetReader::ParquetReader(ParquetReader&&) noexcept = default;
ParquetReader& ParquetReader::operator=(ParquetReader&&) noexcept = default;

const std::vector<ParquetColumn>& ParquetReader::schema() const {
  return impl_->schema();
}

std::uint64_t ParquetReader::rows() const {
  return impl_->rows();
}

std::optional<std::vector<Cell>> ParquetReader::next() {
  return impl_->next();
}

std::uint64_t ParquetReader::skip(std::uint64_t rows) {
  return impl_->skip(rows);
}

std::uint64_t ParquetReader::row() const {
  return impl_->passed();
}

std::vector<ParquetColumn> parquet_schema(const std::string& path) {
  return ParquetReader(path).schema();
}

}  // namespace millrace
