#include "millrace/train/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <regex>
#include <thread>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/io/finite.h"
#include "millrace/io/json.h"
#include "millrace/io/safetensors.h"
#include "millrace/io/safetensors_writer.h"

namespace millrace {
namespace {

constexpr int manifest_format = 1;
constexpr const char* manifest_name = "MANIFEST.json";
constexpr const char* manifest_digest_name = "MANIFEST.xxh3";
constexpr const char* keep_name = "KEEP";  // a checkpoint with a file of this name is never deleted

// `xxh128sum -c MANIFEST.xxh3` understands this line.
std::string digest_line(std::string_view manifest) {
  return fmt::format("{}  {}\n", hash128(manifest).hex(), manifest_name);
}

nlohmann::json read_manifest(const std::filesystem::path& path) {
  const auto text = read_file(path / manifest_name);
  if (read_file(path / manifest_digest_name) != digest_line(text))
    fail(Exit::io, "{}: MANIFEST.json does not match its digest", path.string());
  auto manifest = parse_json(text, (path / manifest_name).string());
  if (!manifest.is_object()) fail(Exit::io, "{}: MANIFEST.json is no JSON object", path.string());
  if (manifest.value("format", 0) != manifest_format)
    fail(Exit::io, "{}: written in checkpoint format {}, this program reads {}", path.string(),
         manifest.value("format", 0), manifest_format);
  return manifest;
}

void check_files(const std::filesystem::path& path, const nlohmann::json& manifest, bool verify) {
  for (const auto& file : manifest.at("files")) {
    const auto name = path / file.at("name").get<std::string>();
    std::error_code error;
    const auto bytes = std::filesystem::file_size(name, error);
    if (error) fail(Exit::io, "{} is missing", name.string());
    if (bytes != file.at("bytes").get<std::uint64_t>())
      fail(Exit::io, "{} has {} bytes, the manifest says {}", name.string(), bytes,
           file.at("bytes").get<std::uint64_t>());
    if (verify && hash_file(name).hex() != file.at("xxh3_128").get<std::string>())
      fail(Exit::io, "{} is damaged: its digest differs from the manifest's", name.string());
  }
}

std::string table_key(const std::string& kind, const std::string& name) {
  return kind + "/" + name;
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("step-{:08d}", step);
}

std::vector<CheckpointName> list_checkpoints(const std::filesystem::path& run_dir) {
  static const std::regex pattern("step-([0-9]{8,})");
  std::vector<CheckpointName> found;
  const auto folder = run_dir / "checkpoints";
  if (!std::filesystem::is_directory(folder)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::smatch match;
    const auto name = entry.path().filename().string();
    if (entry.is_directory() && std::regex_match(name, match, pattern))
      found.push_back({entry.path(), std::stoll(match[1])});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

// ---- reading -----------------------------------------------------------------------------------------------------

struct CheckpointReader::Files {
  std::map<std::string, SafetensorsFile> open;

  std::span<const std::byte> part(const std::string& key, const nlohmann::json& part) const {
    const auto& file = part.at("file").get_ref<const std::string&>();
    const auto found = open.find(file);
    if (found == open.end()) fail(Exit::io, "MANIFEST.json names {} for {}, but not among its files", file, key);
    return found->second.bytes(key);
  }

  // Digests tell that a file is as it was written, not that a run of any worth wrote it.
  void refuse_non_finite_numbers() const {
    for (const auto& [name, file] : open)
      for (const auto& info : file.tensors()) refuse_non_finite(file.path(), info.name, info.dtype, file.bytes(info));
  }

  // The parts of every tensor of the manifest's table lie in the files and fill its shape.
  void check_table(const std::filesystem::path& path, const nlohmann::json& table) const {
    for (const auto& [key, entry] : table.items()) {
      std::int64_t elements = 1, filled = 0;
      for (const auto& size : entry.at("shape")) elements *= size.get<std::int64_t>();
      for (const auto& item : entry.at("parts")) {
        const auto begin = item.at("begin").get<std::int64_t>(), end = item.at("end").get<std::int64_t>();
        if (begin != filled || end < begin || end > elements ||
            part(key, item).size() != static_cast<std::size_t>(end - begin) * sizeof(float))
          fail(Exit::io, "{}: the parts of {} do not fit its shape", path.string(), key);
        filled = end;
      }
      if (filled != elements)
        fail(Exit::io, "{}: {} is incomplete ({} of {} elements)", path.string(), key, filled, elements);
      (void)entry.at("channels_last").get<bool>();
    }
  }
};

CheckpointReader CheckpointReader::open(const std::filesystem::path& path, bool verify) {
  CheckpointReader reader;
  reader.path_ = path;
  try {
    reader.manifest_ = read_manifest(path);
    check_files(path, reader.manifest_, verify);
    reader.files_ = std::make_shared<Files>();
    for (const auto& file : reader.manifest_.at("files")) {
      const auto name = file.at("name").get<std::string>();
      reader.files_->open.emplace(name, SafetensorsFile(path / name));
    }
    reader.files_->check_table(path, reader.manifest_.at("tensors"));
    (void)reader.state();
    if (verify) reader.files_->refuse_non_finite_numbers();
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{}: MANIFEST.json: {}", path.string(), error.what());
  }
  return reader;
}

RunState CheckpointReader::state() const {
  return RunState::from_json(manifest_.at("state"));
}

std::vector<std::string> CheckpointReader::names(const std::string& kind) const {
  std::vector<std::string> names;
  for (const auto& [key, entry] : manifest_.at("tensors").items())
    if (key.starts_with(kind + "/")) names.push_back(key.substr(kind.size() + 1));
  return names;
}

bool CheckpointReader::has(const std::string& kind) const {
  return !names(kind).empty();
}

torch::Tensor CheckpointReader::tensor(const std::string& kind, const std::string& name) const {
  const auto key = table_key(kind, name);
  const auto& table = manifest_.at("tensors");
  if (!table.contains(key)) fail(Exit::io, "{} has no tensor {}", path_.string(), key);
  const auto shape = table[key].at("shape").get<std::vector<std::int64_t>>();
  auto flat = torch::empty({c10::multiply_integers(shape)}, torch::kFloat32);
  for (const auto& part : table[key].at("parts")) {
    const auto bytes = files_->part(key, part);
    std::memcpy(flat.data_ptr<float>() + part.at("begin").get<std::int64_t>(), bytes.data(), bytes.size());
  }
  return from_storage_order(flat, shape, table[key].at("channels_last").get<bool>()).contiguous();
}

// Empty when there are no checkpoints.
static std::string newest_valid(const std::filesystem::path& run_dir) {
  const auto candidates = list_checkpoints(run_dir);
  for (const auto& candidate : candidates) {
    try {
      CheckpointReader::open(candidate.path);
      return candidate.path.string();
    } catch (const Error& broken) {
      log::warning("checkpoint {} is not used: {}", candidate.path.string(), broken.what());
    }
  }
  if (candidates.empty()) return {};
  throw Error(
      Exit::io,
      fmt::format("none of the {} checkpoints in {} is valid", candidates.size(), (run_dir / "checkpoints").string()),
      "restore one from a backup, or move the run folder away to start from step 0");
}

std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& run_dir, const Group& trainers) {
  std::string found;
  on_root(trainers, [&] { found = newest_valid(run_dir); });
  found = trainers.broadcast(found);
  if (found.empty()) return std::nullopt;
  return found;
}

void restore(const CheckpointReader& checkpoint, ShardedAdamW& optimizer) {
  for (const auto& [kind, shards] : optimizer.state()) {
    const bool from_weights = kind == "ema" && !checkpoint.has("ema");
    if (from_weights) log::info("the checkpoint has no EMA: it starts from the weights");
    const std::string source = from_weights ? "weights" : kind;
    optimizer.load(kind, checkpoint.path().string(),
                   [&](const std::string& name) { return checkpoint.tensor(source, name); });
  }
  const auto state = checkpoint.state();
  optimizer.set_updates(state.updates, state.ema_updates);
  optimizer.publish_weights();
}

// ---- writing -----------------------------------------------------------------------------------------------------

// A save on its way: what to write, the thread that writes it, and how that went.
struct CheckpointWriter::Job {
  std::filesystem::path temporary, final_name;
  RunPoint point;
  nlohmann::json manifest;  // rank 0
  std::string file_name;    // empty: this rank writes nothing
  std::vector<Slice> slices;
  std::map<std::string, std::vector<torch::Tensor>> snapshot;  // kind -> host copy of each bucket's shard
  std::atomic<bool> done{false};
  nlohmann::json report;  // for rank 0: file, size, digest, slices; or the error
  std::jthread thread;

  void write() {
    try {
      if (!file_name.empty()) write_file();
    } catch (const Error& error) {
      report = {{"error", error.what()}, {"exit", static_cast<int>(error.exit())}};
    } catch (const std::exception& error) {
      report = {{"error", error.what()}};
    }
    done = true;
  }

  // Loss and gradient were finite, but an update can still overflow.
  void refuse_non_finite_tensor(std::string_view key, std::span<const std::byte> bytes) const {
    if (const auto found = find_non_finite(DType::f32, bytes))
      throw Error(Exit::numerics,
                  fmt::format("step {}: element {} of {} is {}: no checkpoint holds such numbers", point.step,
                              found->element, key, found->value),
                  "an update has overflowed; a lower optim.lr is the usual cure");
  }

  void write_file() {
    std::vector<TensorSpec> specs;
    std::map<std::string, std::span<const std::byte>> bytes;
    nlohmann::json table = nlohmann::json::array();
    for (const auto& [kind, buckets] : snapshot)
      for (const auto& slice : slices) {
        const auto key = table_key(kind, slice.name);
        specs.push_back({key, DType::f32, {slice.end - slice.begin}});
        const auto* data = buckets[slice.bucket].data_ptr<float>() + slice.shard_offset;
        bytes[key] = std::as_bytes(std::span(data, static_cast<std::size_t>(slice.end - slice.begin)));
        table.push_back({{"key", key},
                         {"shape", slice.shape},
                         {"channels_last", slice.channels_last},
                         {"begin", slice.begin},
                         {"end", slice.end}});
      }
    for (const auto& [key, values] : bytes) refuse_non_finite_tensor(key, values);
    SafetensorsWriter writer(temporary / file_name, std::move(specs));
    for (const auto& spec : writer.order()) writer.write(spec.name, bytes.at(spec.name));
    const auto written = writer.commit();
    report = {{"name", file_name}, {"bytes", written.bytes}, {"xxh3_128", written.digest.hex()}, {"slices", table}};
  }
};

// What a killed run left half written or half deleted.
static void remove_leftovers(const std::filesystem::path& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto extension = entry.path().extension().string();
    if (extension.starts_with(".tmp") || extension == ".trash") leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) std::filesystem::remove_all(path, error);
}

CheckpointWriter::CheckpointWriter(std::filesystem::path run_dir, Group trainers, Retention retention,
                                   const RunPoint& start, const RunLease* lease)
    : run_dir_(std::move(run_dir)),
      trainers_(std::move(trainers)),
      retention_(retention),
      last_point_(start),
      lease_(lease) {
  if (trainers_.rank() == 0) remove_leftovers(run_dir_ / "checkpoints");
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::start(const ShardedModel& model, const ShardedAdamW& optimizer, const RunState& state,
                             const nlohmann::json& extra) {
  if (in_flight_) commit();
  job_ = std::make_unique<Job>();
  Job& job = *job_;
  job.point = state.point();
  job.final_name = run_dir_ / "checkpoints" / step_name(state.step);
  job.temporary = job.final_name.string() + ".tmp" + (lease_ ? "-" + lease_->nonce() : "");
  try {
    on_root(trainers_, [&] {
      job.manifest = extra;
      job.manifest["format"] = manifest_format;
      job.manifest["step"] = state.step;
      job.manifest["samples"] = state.samples;
      job.manifest["state"] = state.to_json();
      std::error_code code;
      std::filesystem::remove_all(job.temporary, code);
      std::filesystem::create_directories(job.temporary, code);
      if (code) fail(Exit::io, "cannot make {}: {}", job.temporary.string(), code.message());
    });
  } catch (const Error& failed) {
    log::warning("no checkpoint at step {}: {}", state.step, failed.what());
    job_.reset();
    return;
  }
  if (model.plan().replica_of(trainers_.rank()) == 0) {
    job.file_name = fmt::format("shard-{:05d}-of-{:05d}.safetensors", model.shard(), model.plan().shards);
    job.slices = slices_of_shard(model.layout(), model.shard());
    for (const auto& [kind, shards] : optimizer.state())
      for (const auto& shard : shards)
        job.snapshot[kind].push_back(shard.to(torch::kCPU, torch::kFloat32, /*non_blocking=*/false, /*copy=*/true));
  }
  in_flight_ = true;
  job.thread = std::jthread([&job] { job.write(); });
}

bool CheckpointWriter::busy() const {
  return job_ && !job_->done;
}

bool CheckpointWriter::commit() {
  if (!in_flight_) return false;
  const auto job = std::move(job_);
  job->thread.join();
  in_flight_ = false;
  const auto reports = trainers_.gather_strings(job->report.dump());
  try {
    on_root(trainers_, [&] { publish(*job, reports); });
  } catch (const Error& failed) {
    if (failed.exit() == Exit::numerics || failed.exit() == Exit::timeout) throw;
    if (trainers_.rank() == 0)
      log::warning("no checkpoint at step {}: {}; earlier checkpoints stay, the run continues", job->point.step,
                   failed.what());
    return false;
  }
  last_step_ = job->point.step;
  last_point_ = job->point;
  if (trainers_.rank() == 0) {
    log::info("checkpoint {}", job->final_name.string());
    retire();
  }
  return true;
}

// Rank 0, with what all ranks have written: the manifest, then the directory under its final name, or nothing at all.
void CheckpointWriter::publish(Job& job, const std::vector<std::string>& reports) const {
  try {
    nlohmann::json files = nlohmann::json::array(), tensors = nlohmann::json::object();
    for (const auto& text : reports) {
      auto report = nlohmann::json::parse(text);
      if (report.is_null()) continue;
      if (report.contains("error"))
        throw Error(static_cast<Exit>(report.value("exit", static_cast<int>(Exit::io))),
                    report["error"].get<std::string>());
      for (const auto& slice : report["slices"]) {
        auto& entry = tensors[slice["key"].get<std::string>()];
        entry["shape"] = slice["shape"];
        entry["channels_last"] = slice["channels_last"];
        entry["parts"].push_back({{"file", report["name"]}, {"begin", slice["begin"]}, {"end", slice["end"]}});
      }
      report.erase("slices");
      files.push_back(std::move(report));
    }
    job.manifest["files"] = std::move(files);
    job.manifest["tensors"] = std::move(tensors);
    const auto text = job.manifest.dump(1) + "\n";
    write_file_atomically(job.temporary / manifest_name, text);
    write_file_atomically(job.temporary / manifest_digest_name, digest_line(text));
    if (crossed(retention_.keep_every, last_point_, job.point)) write_file_atomically(job.temporary / keep_name, "");
    if (lease_ && !lease_->is_ours())
      throw Error(Exit::timeout,
                  fmt::format("{} has been taken over by another instance of the run", run_dir_.string()),
                  "this one ends; the other one continues");
    if (last_step_ == 0) abandon_newer();
    if (std::filesystem::exists(job.final_name)) {  // a damaged one of the same step, passed over at the start
      const auto trash = job.final_name.string() + ".trash";
      std::filesystem::remove_all(trash);
      std::filesystem::rename(job.final_name, trash);
      std::filesystem::remove_all(trash);
    }
    std::error_code none;
    std::filesystem::remove(run_dir_ / "DONE", none);  // of an earlier, shorter start: the run has gone on
    publish_directory(job.temporary, job.final_name);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(job.temporary, ignored);
    throw;
  }
}

// Checkpoints from beyond the step that this process began with: damaged, or of a time that the user went back from.
// Left under their names, the next start would continue with one of them.
void CheckpointWriter::abandon_newer() const {
  const auto suffix = fmt::format(".abandoned-{:08x}", hash64(process_name() + step_name(last_point_.step)) >> 32);
  for (const auto& checkpoint : list_checkpoints(run_dir_)) {
    if (checkpoint.step <= last_point_.step) continue;
    std::filesystem::rename(checkpoint.path, checkpoint.path.string() + suffix);
    log::warning("{} is not continued: renamed to {}{}", checkpoint.path.string(), checkpoint.path.filename().string(),
                 suffix);
  }
}

// Deletes what is older than the newest `keep`, but for what is marked to be kept. What is newer than the one just
// written comes from before a restart from an older step, or was passed over as damaged: it counts for nothing here.
void CheckpointWriter::retire() const {
  auto all = list_checkpoints(run_dir_);
  std::erase_if(all, [&](const CheckpointName& checkpoint) { return checkpoint.step > last_step_; });
  for (std::size_t i = static_cast<std::size_t>(retention_.keep); i < all.size(); ++i) {
    std::error_code error;
    if (std::filesystem::exists(all[i].path / keep_name, error)) continue;
    const auto trash = all[i].path.string() + ".trash";
    std::filesystem::rename(all[i].path, trash,
                            error);  // first out of sight, so that a half-deleted one is never a candidate
    if (!error) std::filesystem::remove_all(trash, error);
    if (error) log::warning("cannot delete the old checkpoint {}: {}", all[i].path.string(), error.message());
  }
}

}  // namespace millrace
