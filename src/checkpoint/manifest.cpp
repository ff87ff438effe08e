#include "millrace/checkpoint/manifest.h"

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/json_text.h"
#include "millrace/core/run_files.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

constexpr int written_format = 2;  // 1 had the ledger in `state`
constexpr const char* digest_name = "MANIFEST.xxh3";

// `xxh128sum -c MANIFEST.xxh3` understands this line.
std::string digest_line(std::string_view manifest) {
  return fmt::format("{}  {}\n", hash128(manifest).hex(), run_file::manifest);
}

std::vector<CheckpointFile> read_files(const nlohmann::json& json, const fs::path& checkpoint) {
  std::vector<CheckpointFile> files;
  for (const auto& item : json) {
    files.push_back(item.get<CheckpointFile>());
    const auto& name = files.back().name;
    if (name.empty() || fs::path(name).filename() != name)
      fail(Exit::io, "{}: MANIFEST.json: '{}' is no name of a file", checkpoint.string(), name);
  }
  return files;
}

// The parts follow each other and fill the shape.
void check_parts(const CheckpointTensor& tensor, const std::string& key, const fs::path& checkpoint) {
  const std::int64_t elements = tensor.elements();
  std::int64_t filled = 0;
  for (const auto& [file, begin, end] : tensor.parts) {
    if (begin != filled || end < begin || end > elements)
      fail(Exit::io, "{}: the parts of {} do not fit its shape", checkpoint.string(), key);
    filled = end;
  }
  if (filled != elements)
    fail(Exit::io, "{}: {} is incomplete ({} of {} elements)", checkpoint.string(), key, filled, elements);
}

std::map<std::string, CheckpointTensor> read_tensors(const nlohmann::json& json,
                                                     const std::vector<CheckpointFile>& files,
                                                     const fs::path& checkpoint) {
  std::map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < files.size(); ++i) number[files[i].name] = i;
  std::map<std::string, CheckpointTensor> tensors;
  for (const auto& [key, item] : json.items()) {
    CheckpointTensor tensor{item.at("shape"), item.at("channels_last"), {}};
    for (const auto& part : item.at("parts")) {
      const auto found = number.find(part.at("file"));
      if (found == number.end())
        fail(Exit::io, "{}: MANIFEST.json names {} for {}, but not among its files", checkpoint.string(),
             part.at("file").dump(), key);
      tensor.parts.push_back({found->second, part.at("begin"), part.at("end")});
    }
    check_parts(tensor, key, checkpoint);
    tensors.emplace(key, std::move(tensor));
  }
  return tensors;
}

}  // namespace

void to_json(nlohmann::json& json, const CheckpointFile& file) {
  json = {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.digest}};
}

void from_json(const nlohmann::json& json, CheckpointFile& file) {
  json.at("name").get_to(file.name);
  json.at("bytes").get_to(file.bytes);
  json.at("xxh3_128").get_to(file.digest);
}

std::int64_t CheckpointTensor::elements() const {
  std::int64_t product = 1;
  for (const auto size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product))
      fail(Exit::io, "a tensor of a size beyond 63 bits");
  }
  return product;
}

std::string CheckpointManifest::read(const fs::path& checkpoint) {
  auto text = read_file(checkpoint / run_file::manifest);
  if (read_digest(checkpoint) != digest_line(text))
    fail(Exit::io, "{}: MANIFEST.json does not match its digest", checkpoint.string());
  return text;
}

std::string CheckpointManifest::read_digest(const fs::path& checkpoint) {
  return read_file(checkpoint / digest_name);
}

CheckpointManifest CheckpointManifest::parse(std::string_view text, const fs::path& checkpoint) {
  CheckpointManifest manifest;
  manifest.json = parse_json(text, (checkpoint / run_file::manifest).string());
  auto& json = manifest.json;
  if (!json.is_object()) fail(Exit::io, "{}: MANIFEST.json is no JSON object", checkpoint.string());
  try {
    const int format = json.value("format", 0);
    if (format < 1 || format > written_format)
      fail(Exit::io, "{}: written in checkpoint format {}, this program reads 1 to {}", checkpoint.string(), format,
           written_format);
    manifest.files = read_files(json.at("files"), checkpoint);
    manifest.tensors = read_tensors(json.at("tensors"), manifest.files, checkpoint);
    json.erase("tensors");
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: MANIFEST.json: {}", checkpoint.string(), error.what());
  }
  return manifest;
}

std::vector<CheckpointFile> CheckpointManifest::write(const fs::path& checkpoint, nlohmann::json json,
                                                      const std::vector<CheckpointFile>& files,
                                                      const std::map<std::string, CheckpointTensor>& tensors) {
  json["format"] = written_format;
  json["files"] = files;
  auto& table = json["tensors"] = nlohmann::json::object();
  for (const auto& [key, tensor] : tensors) {
    auto parts = nlohmann::json::array();
    for (const auto& [file, begin, end] : tensor.parts)
      parts.push_back({{"file", files[file].name}, {"begin", begin}, {"end", end}});
    table[key] = {{"shape", tensor.shape}, {"channels_last", tensor.channels_last}, {"parts", std::move(parts)}};
  }
  const auto text = dump_any(json, 1) + "\n";
  const auto write = [&](const char* name, const std::string& content) {
    write_file_atomically(checkpoint / name, content);
    return CheckpointFile{name, content.size(), hash128(content).hex()};
  };
  return {write(run_file::manifest, text), write(digest_name, digest_line(text))};
}

bool CheckpointManifest::has(const std::string& kind) const {
  const auto start = key(kind, "");
  const auto first = tensors.lower_bound(start);
  return first != tensors.end() && first->first.starts_with(start);
}

}  // namespace millrace
