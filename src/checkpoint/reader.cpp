#include "millrace/checkpoint/reader.h"

#include <algorithm>
#include <array>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/finite.h"
#include "millrace/io/input_file.h"
#include "millrace/io/safetensors.h"

namespace millrace {
namespace {

constexpr std::size_t piece_bytes = 4 << 20;  // whole floats

// Where the data of a safetensors file begin, by the length it begins with; whether it is one is not known yet.
std::uint64_t data_offset(const InputFile& file) {
  std::array<std::byte, 8> length{};
  file.read_at(0, length);
  std::uint64_t header = 0;
  for (std::size_t i = 8; i-- > 0;) header = header << 8 | std::to_integer<std::uint64_t>(length[i]);
  const std::uint64_t size = file.size();
  return size < 8 || header > std::min(size - 8, max_safetensors_header) ? std::min<std::uint64_t>(size, 8)
                                                                         : 8 + header;
}

// Calls `use(offset, bytes)` for [begin, end) of the file, in pieces.
template <class Use>
void for_each_piece(const InputFile& file, std::uint64_t begin, std::uint64_t end, Use use) {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(piece_bytes, end - begin));
  while (begin < end) {
    const auto wanted = std::min<std::uint64_t>(buffer.size(), end - begin);
    const auto got = file.read_at(begin, std::span(buffer.data(), wanted));
    use(begin, std::span<const std::byte>(buffer.data(), got));
    if (got < wanted) return;  // cut off meanwhile: the digest tells
    begin += got;
  }
}

// NFS may remember for a while that a file was not there yet; opening its folder makes it ask.
std::uintmax_t file_size_asked_anew(const std::filesystem::path& path, std::error_code& error) {
  const auto bytes = std::filesystem::file_size(path, error);
  if (!error) return bytes;
  std::error_code ignored;
  (void)std::filesystem::directory_iterator(path.parent_path(), ignored);
  return std::filesystem::file_size(path, error);
}

// The table of tensors of a file whose digest is right is what the manifest says.
void check_tensors(const CheckpointManifest& manifest, std::size_t number, const SafetensorsHeader& header,
                   const std::string& path) {
  std::map<std::string_view, const TensorInfo*> held;
  for (const auto& info : header.tensors) held[info.name] = &info;
  for (const auto& [key, tensor] : manifest.tensors)
    for (const auto& part : tensor.parts) {
      if (part.file != number) continue;
      const auto found = held.find(key);
      if (found == held.end()) fail(Exit::io, "{} holds no tensor '{}'", path, key);
      const auto& info = *found->second;
      if (info.dtype != DType::f32 ||
          info.end - info.begin != sizeof(float) * static_cast<std::uint64_t>(part.end - part.begin))
        fail(Exit::io, "{}: the parts of {} do not fit its shape", path, key);
    }
}

// on_all, where a fault of the storage is another error than what is wrong with what it holds.
template <class F>
void on_all_that_can_read(const Group& group, F&& f) {
  std::optional<Error> away, wrong;
  try {
    f();
  } catch (const StorageError& error) {
    away = Error(error.exit(), error.what(), "try again, or move this checkpoint away to start from the one before");
  } catch (...) {
    wrong = present_error();
  }
  try {
    agree(group, away);
  } catch (const AgreedError& error) {
    throw UnreadableCheckpoint(error, group);
  }
  agree(group, wrong);
}

}  // namespace

CheckpointReader::CheckpointReader(std::filesystem::path path, const std::string& manifest)
    : path_(std::move(path)), manifest_(CheckpointManifest::parse(manifest, path_)) {
  (void)state();
}

CheckpointReader CheckpointReader::open(const std::filesystem::path& path) {
  return open(path, Group());
}

CheckpointReader CheckpointReader::open(const std::filesystem::path& path, const Group& group,
                                        const std::vector<int>& verifiers) {
  std::string text;
  on_all_that_can_read(group, [&] {
    if (group.is_root()) text = CheckpointManifest::read(path);
  });
  text = group.broadcast(std::move(text));
  std::optional<CheckpointReader> reader;
  on_all_that_can_read(group, [&] {
    reader.emplace(CheckpointReader(path, text));
    const auto places =
        verifiers_of(reader->files(), verifiers.empty() ? group.size() : static_cast<int>(verifiers.size()));
    for (std::size_t file = 0; file < places.size(); ++file) {
      const auto verifier = verifiers.empty() ? places[file] : verifiers[static_cast<std::size_t>(places[file])];
      if (verifier == group.rank()) reader->verify(file);
    }
  });
  return std::move(*reader);
}

std::vector<int> verifiers_of(const std::vector<CheckpointFile>& files, int ranks) {
  const auto with_tensors = std::ranges::count_if(files, &CheckpointFile::holds_tensors);
  std::vector<int> verifiers;
  std::int64_t before = 0;
  for (const auto& file : files)
    verifiers.push_back(file.holds_tensors() ? static_cast<int>(before++ * ranks / with_tensors) : 0);
  return verifiers;
}

void CheckpointReader::verify(std::size_t number) const {
  const auto& expected = files()[number];
  const auto path = (path_ / expected.name).string();
  std::error_code error;
  const auto bytes = file_size_asked_anew(path, error);
  check_storage(error, path);
  if (error) fail(Exit::io, "{} is missing", path);
  if (bytes != expected.bytes) fail(Exit::io, "{} has {} bytes, the manifest says {}", path, bytes, expected.bytes);

  const InputFile file(path);
  const std::uint64_t data = expected.holds_tensors() ? data_offset(file) : bytes;
  Hasher128 hasher;
  std::vector<std::byte> header;
  for_each_piece(file, 0, data, [&](std::uint64_t, std::span<const std::byte> piece) {
    hasher.update(piece.data(), piece.size());
    if (expected.holds_tensors()) header.insert(header.end(), piece.begin(), piece.end());
  });
  // Digests tell that a file is as it was written, not that a run of any worth wrote it.
  std::optional<NonFinite> non_finite;  // its element counts from the first of the file
  for_each_piece(file, data, bytes, [&](std::uint64_t offset, std::span<const std::byte> piece) {
    hasher.update(piece.data(), piece.size());
    if (const auto found = find_non_finite(DType::f32, piece); found && !non_finite)
      non_finite = {(offset - data) / sizeof(float) + found->element, found->value};
  });
  if (hasher.digest().hex() != expected.digest)
    fail(Exit::io, "{} is damaged: its digest differs from the manifest's", path);

  if (!expected.holds_tensors()) return;
  const auto table = parse_safetensors(header, bytes, path);
  check_tensors(manifest_, number, table, path);
  if (!non_finite) return;
  for (const auto& info : table.tensors)
    if (sizeof(float) * non_finite->element < info.end)
      throw Error(Exit::io,
                  fmt::format("{}: '{}' holds {} (element {})", path, info.name, non_finite->value,
                              non_finite->element - info.begin / sizeof(float)),
                  "it comes from a run that diverged, or was changed: take an older one");
}

RunState CheckpointReader::state() const {
  try {
    return RunState::from_json(manifest().at("state"));
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: MANIFEST.json: {}", path_.string(), error.what());
  }
}

std::string CheckpointReader::ledger() const {
  if (manifest().contains("ledger")) {
    const auto name = manifest().at("ledger").get<std::string>();
    if (std::ranges::find(files(), name, &CheckpointFile::name) == files().end())
      fail(Exit::io, "{}: MANIFEST.json lists no file {}", path_.string(), name);
    return read_file(path_ / name);
  }
  const auto inside = manifest().at("state").value("ledger", nlohmann::json());  // format 1
  return inside.is_null() ? "" : inside.dump();
}

std::vector<std::string> CheckpointReader::names(const std::string& kind) const {
  std::vector<std::string> names;
  for (const auto& [key, tensor] : manifest_.tensors)
    if (key.starts_with(kind + "/")) names.push_back(key.substr(kind.size() + 1));
  return names;
}

bool CheckpointReader::has(const std::string& kind) const {
  return manifest_.has(kind);
}

const CheckpointTensor& CheckpointReader::entry(const std::string& kind, const std::string& name) const {
  const auto key = CheckpointManifest::key(kind, name);
  const auto found = manifest_.tensors.find(key);
  if (found == manifest_.tensors.end()) fail(Exit::io, "{} has no tensor {}", path_.string(), key);
  return found->second;
}

}  // namespace millrace
