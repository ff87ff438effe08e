#include "millrace/io/parquet_writer.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <parquet/arrow/writer.h>
#include <parquet/exception.h>

#include <exception>
#include <utility>

#include "millrace/core/error.h"

namespace millrace {

namespace {

using Type = ParquetField::Type;

constexpr std::size_t group_bytes = 64 << 20;

std::shared_ptr<arrow::DataType> arrow_type(Type type) {
  switch (type) {
    case Type::boolean:
      return arrow::boolean();
    case Type::int32:
      return arrow::int32();
    case Type::int64:
      return arrow::int64();
    case Type::uint64:
      return arrow::uint64();
    case Type::float64:
      return arrow::float64();
    case Type::text:
      return arrow::utf8();
    case Type::bytes:
      return arrow::binary();
  }
  return arrow::utf8();
}

// Arrow's view of an AtomicFile. An Error must not pass through Arrow: it is kept for `check`.
class AtomicOutput final : public arrow::io::OutputStream {
 public:
  explicit AtomicOutput(const fs::path& path) : file(path) {}

  arrow::Status Write(const void* data, std::int64_t bytes) override {
    try {
      file.write(data, static_cast<std::size_t>(bytes));
    } catch (...) {
      failure = std::current_exception();
      return arrow::Status::IOError("write failed");
    }
    position_ += bytes;
    return arrow::Status::OK();
  }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> Tell() const override { return position_; }
  bool closed() const override { return closed_; }

  AtomicFile file;
  std::exception_ptr failure;

 private:
  std::int64_t position_ = 0;
  bool closed_ = false;
};

// Arrow's errors of appending are lack of memory and values of a wrong type.
struct Append {
  arrow::ArrayBuilder& builder;
  Type type;

  arrow::Status operator()(std::monostate) const { return builder.AppendNull(); }
  arrow::Status operator()(bool value) const {
    ensure(type == Type::boolean, "a boolean goes into a boolean column");
    return static_cast<arrow::BooleanBuilder&>(builder).Append(value);
  }
  arrow::Status operator()(std::int64_t value) const {
    if (type == Type::int32) return static_cast<arrow::Int32Builder&>(builder).Append(static_cast<std::int32_t>(value));
    if (type == Type::float64) return (*this)(static_cast<double>(value));
    if (type == Type::uint64) {
      ensure(value >= 0, "a column without signs has no negative numbers");
      return (*this)(static_cast<std::uint64_t>(value));
    }
    ensure(type == Type::int64, "a whole number goes into a column of numbers");
    return static_cast<arrow::Int64Builder&>(builder).Append(value);
  }
  arrow::Status operator()(std::uint64_t value) const {
    if (type == Type::float64) return (*this)(static_cast<double>(value));
    ensure(type == Type::uint64, "a whole number goes into a column that holds it");
    return static_cast<arrow::UInt64Builder&>(builder).Append(value);
  }
  arrow::Status operator()(double value) const {
    ensure(type == Type::float64, "a number goes into a column of numbers");
    return static_cast<arrow::DoubleBuilder&>(builder).Append(value);
  }
  arrow::Status operator()(const std::string& value) const {
    ensure(type == Type::text || type == Type::bytes, "text goes into a column of text");
    return static_cast<arrow::BinaryBuilder&>(builder).Append(value);
  }
  arrow::Status operator()(const JsonText& value) const { return (*this)(value.text); }
};

}  // namespace

class ParquetWriter::Impl {
 public:
  Impl(const fs::path& path, std::vector<ParquetField> fields, std::size_t group_rows)
      : path_(path), fields_(std::move(fields)), group_rows_(group_rows), out_(std::make_shared<AtomicOutput>(path)) {
    arrow::FieldVector columns;
    for (const ParquetField& field : fields_) columns.push_back(arrow::field(field.name, arrow_type(field.type)));
    schema_ = arrow::schema(columns);
    for (const auto& column : columns) builders_.push_back(check(arrow::MakeBuilder(column->type(), pool())));
    const auto properties = parquet::WriterProperties::Builder().compression(arrow::Compression::SNAPPY)->build();
    writer_ = check(parquet::arrow::FileWriter::Open(*schema_, pool(), out_, properties));
  }

  void write(const std::vector<Cell>& row) {
    ensure(row.size() == fields_.size(), "a row has one cell per field");
    for (std::size_t i = 0; i < row.size(); ++i) {
      check(std::visit(Append{*builders_[i], fields_[i].type}, row[i]));
      if (const auto* const text = std::get_if<std::string>(&row[i])) bytes_ += text->size();
      if (const auto* const several = std::get_if<JsonText>(&row[i])) bytes_ += several->text.size();
    }
    if (++rows_ == group_rows_ || bytes_ >= group_bytes) flush();
  }

  AtomicFile::Written commit() {
    flush();
    guarded([&] { check(writer_->Close()); });
    return out_->file.commit();
  }

 private:
  static arrow::MemoryPool* pool() { return arrow::system_memory_pool(); }

  void flush() {
    if (rows_ == 0) return;
    arrow::ArrayVector columns;
    for (const auto& builder : builders_) columns.push_back(check(builder->Finish()));
    const auto table = arrow::Table::Make(schema_, columns);
    guarded([&] { check(writer_->WriteTable(*table, static_cast<std::int64_t>(rows_))); });
    rows_ = bytes_ = 0;
  }

  // Parts of the Parquet library report by exception, others by status.
  template <class Call>
  void guarded(Call call) {
    try {
      call();
    } catch (const parquet::ParquetException& error) {
      if (out_->failure) std::rethrow_exception(std::exchange(out_->failure, nullptr));
      fail(Exit::io, "{}: {}", path_.string(), error.what());
    }
  }

  void check(const arrow::Status& status) {
    if (status.ok()) return;
    if (out_->failure) std::rethrow_exception(std::exchange(out_->failure, nullptr));
    fail(Exit::io, "{}: {}", path_.string(), status.message());
  }
  template <class T>
  T check(arrow::Result<T> result) {
    check(result.status());
    return std::move(result).ValueUnsafe();
  }

  const fs::path path_;
  const std::vector<ParquetField> fields_;
  const std::size_t group_rows_;
  std::shared_ptr<AtomicOutput> out_;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::unique_ptr<arrow::ArrayBuilder>> builders_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;
  std::size_t rows_ = 0, bytes_ = 0;  // of the row group at hand
};

ParquetWriter::ParquetWriter(const fs::path& path, std::vector<ParquetField> fields, std::size_t group_rows)
    : impl_(std::make_unique<Impl>(path, std::move(fields), group_rows)) {}
ParquetWriter::~ParquetWriter() = default;

void ParquetWriter::write(const std::vector<Cell>& row) {
  impl_->write(row);
}

AtomicFile::Written ParquetWriter::commit() {
  return impl_->commit();
}

}  // namespace millrace
