#include "millrace/latents/latent_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/core/process_name.h"
#include "millrace/core/secrets.h"
#include "millrace/io/json.h"

namespace millrace {

using nlohmann::json;

namespace {

constexpr std::size_t buffered_bytes = 1 << 20;  // a producer may have hundreds of files open
constexpr std::uint64_t max_rows = 1 << 24;      // of one file

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// 3, 5, 7, 20 -> [[3, 2, 3], [20, 1, 1]]: first, step, count. Splits and whole archives become one entry.
json to_runs(const std::vector<std::uint64_t>& rows) {
  json runs = json::array();
  for (std::size_t begin = 0; begin < rows.size();) {
    std::size_t end = begin + 1;
    const std::uint64_t step = end < rows.size() && rows[end] > rows[begin] ? rows[end] - rows[begin] : 1;
    while (end < rows.size() && rows[end] - rows[end - 1] == step) ++end;
    runs.push_back({rows[begin], step, end - begin});
    begin = end;
  }
  return runs;
}

std::vector<std::uint64_t> from_runs(const json& runs, const fs::path& path) {
  std::vector<std::uint64_t> rows;
  for (const json& run : runs) {
    const std::uint64_t first = run.at(0), step = run.at(1), count = run.at(2);
    if (count > max_rows - rows.size()) fail(Exit::io, "{}: names more than {} rows", path.string(), max_rows);
    for (std::uint64_t i = 0; i < count; ++i) rows.push_back(first + i * step);
  }
  return rows;
}

Hash128 read_digest(const std::string& hex, const fs::path& path) try {
  return Hash128::from_hex(hex);
} catch (const Error& error) {
  fail(Exit::io, "{}: {}", path.string(), error.what());
}

DType text_dtype(const EncodingShape& shape) {
  return shape.has_tokens() ? DType::i32 : DType::f16;
}

json to_json(const LatentFileInfo& info) {
  std::map<std::string, std::vector<std::uint64_t>> rejected;
  for (const auto& [row, reason] : info.rejected) rejected[to_string(reason)].push_back(row);
  json document = {{"format", 1},
                   {"archive", info.archive},
                   {"archive_bytes", info.archive_bytes},
                   {"bytes", info.bytes},
                   {"xxh3_128", info.digest.hex()},
                   {"rows", to_runs(info.rows)},
                   {"rejected", json::object()},
                   {"non_finite", json::array()}};
  for (const auto& [reason, rows] : rejected) document["rejected"][reason] = to_runs(rows);
  for (const auto& [row, id] : info.non_finite) document["non_finite"].push_back({row, id});
  if (!info.archive_path.empty()) document["archive_path"] = info.archive_path;
  return document;
}

}  // namespace

LatentFileInfo read_latent_file_info(const fs::path& path) try {
  const json document = read_json(path);
  if (document.at("format") != 1) fail(Exit::io, "{}: a latent file of a later format", path.string());
  LatentFileInfo info;
  info.path = fs::path(path).replace_extension(".h5");
  info.archive = document.at("archive");
  info.archive_bytes = document.at("archive_bytes");
  info.archive_path = document.value("archive_path", "");
  info.bytes = document.at("bytes");
  info.digest = read_digest(document.at("xxh3_128").get<std::string>(), path);
  info.rows = from_runs(document.at("rows"), path);
  for (const auto& [name, runs] : document.at("rejected").items()) {
    const auto reason = try_parse_reject_reason(name);
    if (!reason) fail(Exit::io, "{}: unknown reason '{}'", path.string(), name);
    for (const std::uint64_t row : from_runs(runs, path)) info.rejected.emplace_back(row, *reason);
  }
  for (const json& sample : document.at("non_finite")) info.non_finite[sample.at(0)] = sample.at(1);
  return info;
} catch (const json::exception& error) {
  fail(Exit::io, "{}: {}", path.string(), error.what());
}

// Writer -----------------------------------------------------------------------------------------------------------

LatentFileWriter::LatentFileWriter(const fs::path& cache, const Archive& archive, const CacheDescription& description)
    : folder_(latent_folder(cache, archive.name)),
      temporary_(latent_scratch(cache)),
      shape_(description.shape),
      fingerprint_(description.fingerprint.dump()) {
  info_.archive = archive.name;
  info_.archive_bytes = archive.bytes;
  if (archive.bytes == 0) info_.archive_path = without_secrets(archive.path);
}

LatentFileWriter::LatentFileWriter(LatentFileWriter&& other) noexcept = default;

LatentFileWriter::~LatentFileWriter() {
  if (!file_) return;
  file_.reset();
  ::unlink(temporary_.c_str());
}

void LatentFileWriter::start() {
  make_directories(folder_);
  make_directories(temporary_);
  std::random_device random;  // one process writes several
  temporary_ /= fmt::format("{:08x}{:08x}-{}.h5", random(), random(), process_name());
  file_ = std::make_unique<Hdf5Writer>(temporary_);
  file_->create("moments", DType::f16, shape_.moments);
  file_->create(shape_.text_name(), text_dtype(shape_), shape_.text);
  file_->create("rows", DType::i64);
  file_->create_text("ids");
  file_->create_text("captions");
  file_->set_attribute("format", "millrace latents 1");
  file_->set_attribute("archive", info_.archive);
  file_->set_attribute("fingerprint", fingerprint_);
}

void LatentFileWriter::add(const Row& row) {
  const auto text_size = shape_.has_tokens() ? row.tokens.size() : row.text.size();
  ensure(row.moments.size() == count_of(shape_.moments) && text_size == count_of(shape_.text),
         "a cache holds encodings of one shape");
  if (!file_) start();
  info_.rows.push_back(row.row);
  if (!row.finite) info_.non_finite[row.row] = row.id;
  ids_.push_back(row.id);
  captions_.push_back(row.caption);
  numbers_.push_back(static_cast<std::int64_t>(row.row));
  moments_.insert(moments_.end(), row.moments.begin(), row.moments.end());
  text_.insert(text_.end(), row.text.begin(), row.text.end());
  tokens_.insert(tokens_.end(), row.tokens.begin(), row.tokens.end());
  if (ids_.size() * encoding_bytes(shape_) > buffered_bytes) flush();
}

void LatentFileWriter::reject(std::uint64_t row, RejectReason reason) {
  if (!file_) start();
  info_.rejected.emplace_back(row, reason);
}

void LatentFileWriter::flush() {
  file_->append("moments", bytes_of(moments_));
  file_->append(shape_.text_name(), shape_.has_tokens() ? bytes_of(tokens_) : bytes_of(text_));
  file_->append("rows", bytes_of(numbers_));
  file_->append_text("ids", ids_);
  file_->append_text("captions", captions_);
  ids_.clear(), captions_.clear(), numbers_.clear(), moments_.clear(), text_.clear(), tokens_.clear();
}

// By its rows: 0000000040-3f2a9c0d11e2b7a4 begins with row 40.
std::string LatentFileWriter::name() const {
  std::uint64_t first = info_.rows.empty() ? info_.rejected.front().first : info_.rows.front();
  const json document = to_json(info_);
  return fmt::format("{:010}-{:016x}", first, hash64(document["rows"].dump() + document["rejected"].dump()));
}

void LatentFileWriter::publish() {
  if (!file_) return;
  flush();
  file_->close();
  info_.path = folder_ / (name() + ".h5");
  const auto written = publish_file(temporary_, info_.path);
  file_.reset();
  info_.bytes = written.bytes;
  info_.digest = written.digest;
  const auto description = fs::path(info_.path).replace_extension(".json");
  try {
    write_file_atomically(description, dump_any(to_json(info_)) + "\n");
  } catch (...) {
    std::error_code ignored;
    if (!fs::exists(description, ignored)) fs::remove(info_.path, ignored);  // nobody would ever look at it
    throw;
  }
}

// Reader -----------------------------------------------------------------------------------------------------------

LatentFile::LatentFile(const LatentFileInfo& info, const EncodingShape& shape) : file_(info.path), shape_(shape) {
  const auto check = [&](const char* name, std::optional<DType> dtype, const std::vector<std::int64_t>& row_shape) {
    const auto rows = file_.expect(name, dtype, row_shape);
    if (rows != info.rows.size())
      fail(Exit::io, "{}: data set {} has {} rows, {} are announced", info.path.string(), name, rows, info.rows.size());
  };
  check("moments", DType::f16, shape.moments);
  check(shape.text_name(), text_dtype(shape), shape.text);
  check("ids", std::nullopt, {});
  ids_ = file_.read_text("ids", 0, info.rows.size());
}

EncodedSample LatentFile::read(std::size_t index) const {
  EncodedSample sample;
  sample.ref.id = ids_.at(index);
  sample.ref.hash = hash64(sample.ref.id);
  const auto read_row = [&](const char* name, auto& values, const std::vector<std::int64_t>& shape) {
    values.resize(count_of(shape));
    file_.read(name, index, 1, std::as_writable_bytes(std::span(values)));
  };
  read_row("moments", sample.encoding.moments, shape_.moments);
  if (shape_.has_tokens()) {
    read_row("tokens", sample.encoding.tokens, shape_.text);
  } else {
    read_row("text", sample.encoding.text, shape_.text);
  }
  return sample;
}

}  // namespace millrace
