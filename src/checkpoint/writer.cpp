#include "millrace/checkpoint/writer.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "millrace/checkpoint/file_plan.h"
#include "millrace/checkpoint/manifest.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/retention.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/world.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/node_memory.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"
#include "millrace/io/finite.h"
#include "millrace/io/safetensors_writer.h"
#include "millrace/nn/device.h"
#include "read_back.h"
#include "snapshot.h"

namespace millrace {
namespace {

constexpr const char* ledger_name = "ledger.json";

std::string file_name(int file, int files) {
  return fmt::format("shard-{:05d}-of-{:05d}.safetensors", file, files);
}

CheckpointFile finish(AtomicFile::Written written, const std::string& name) {
  return {name, written.bytes, written.digest.hex()};
}

// What a rank tells rank 0 when it has written nothing.
std::string describe(const Error& error) {
  return dump_any(nlohmann::json{{"error", error.what()},
                                 {"exit", static_cast<int>(error.exit())},
                                 {"hint", error.hint()},
                                 {"rank", world_rank()}});
}

std::vector<std::string> kinds_of(const ShardedAdamW& optimizer) {
  std::vector<std::string> kinds;
  for (const auto& [kind, shards] : optimizer.state()) kinds.push_back(kind);
  return kinds;
}

}  // namespace

// A checkpoint on its way: what this rank writes of it, and how that went.
struct CheckpointWriter::Job {
  using Elements = std::function<torch::Tensor(const Snapshot::Entry&)>;  // (n) fp32 in host memory

  std::filesystem::path temporary, final_name;
  RunPoint point;
  bool replaces_older = true;
  nlohmann::json manifest;  // rank 0
  std::string ledger;       // rank 0
  std::string own_file;     // of the tensors
  std::atomic<bool> done{false};
  std::string report;  // for rank 0: the files that this rank has written, or its error
  double seconds = 0;  // that the thread took
  std::jthread thread;

  void write(const Snapshot& snapshot, const Elements& elements) {
    try {
      auto files = nlohmann::json::array();
      if (!snapshot.entries().empty()) files.push_back(write_tensors(snapshot, elements));
      if (!ledger.empty()) files.push_back(write_ledger());
      report = files.dump();
    } catch (...) {
      const Error error = present_error();
      if (error.exit() == Exit::suspect_node)
        fault::write_own(error);  // a GPU that is gone: rank 0 tells all of the error, one has it
      report = describe(error);
    }
    done = true;
  }

  CheckpointFile write_tensors(const Snapshot& snapshot, const Elements& elements) const {
    std::vector<TensorSpec> specs;
    for (const auto& [key, entry] : snapshot.entries())
      specs.push_back({key, DType::f32, {entry.slice.end - entry.slice.begin}});
    SafetensorsWriter writer(temporary / own_file, std::move(specs));
    for (const auto& [key, entry] : snapshot.entries()) {
      const auto tensor = elements(entry);
      const auto bytes = std::as_bytes(std::span(tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())));
      refuse_non_finite_tensor(key, bytes);
      writer.write(key, bytes);
    }
    return finish(writer.commit(), own_file);
  }

  CheckpointFile write_ledger() const {
    AtomicFile file(temporary / ledger_name);
    file.write(ledger);
    return finish(file.commit(), ledger_name);
  }

  // Loss and gradient were finite, but an update can still overflow.
  void refuse_non_finite_tensor(std::string_view key, std::span<const std::byte> bytes) const {
    if (const auto found = find_non_finite(DType::f32, bytes))
      throw Error(Exit::numerics,
                  fmt::format("step {}: element {} of {} is {}: no checkpoint holds such numbers", point.step,
                              found->element, key, found->value),
                  "an update has overflowed; a lower optim.lr is the usual cure");
  }
};

CheckpointWriter::CheckpointWriter(std::filesystem::path run_dir, Group trainers, const RunPoint& start,
                                   Options options)
    : run_dir_(std::move(run_dir)),
      trainers_(std::move(trainers)),
      options_(std::move(options)),
      last_point_(start),
      point_before_(start) {
  if (!trainers_.is_root()) return;
  remove_leftover_checkpoints(checkpoints_in(run_dir_));
  tell_of_abandoned(run_dir_);
}

CheckpointWriter::~CheckpointWriter() = default;

bool CheckpointWriter::busy() const {
  return (job_ && !job_->done) || (read_back_ && !read_back_->done());
}

// Once, with the first checkpoint. Without room for copies every trainer writes its own part.
void CheckpointWriter::plan_files(const ShardedModel& model, const ShardedAdamW& optimizer) {
  if (files_) return;
  const auto plan = [&](int max_files) {
    files_ = std::make_unique<FilePlan>(model.layout(), model.plan(), max_files);
    snapshot_ = std::make_unique<Snapshot>(*files_, kinds_of(optimizer), trainers_);
  };
  plan(options_.max_files);
  has_room_ = find_room(optimizer.state().begin()->second.front().is_cuda());
  if (!has_room_) plan(trainers_.size());
}

// All trainers of a node must find room in its memory.
bool CheckpointWriter::find_room(bool pinned) {
  const auto rank = static_cast<std::size_t>(trainers_.rank());
  if (pinned) {  // of a writer before this one: training may have gone back to an older checkpoint
    release_freed_pinned_memory();
    trainers_.barrier();
  }
  const auto free = options_.free_memory.value_or(free_node_memory_bytes());  // before any neighbour takes of it
  const auto bytes = trainers_.all_gather_strings(std::to_string(snapshot_->bytes(pinned)));
  std::uint64_t needed = 0;
  for (std::size_t other = 0; other < bytes.size(); ++other)
    if (options_.hosts.empty() || options_.hosts[other] == options_.hosts[rank]) needed += std::stoull(bytes[other]);
  try {
    on_all(trainers_, [&] {
      if (needed > free - free / 10)
        fail(Exit::io, "{} needed{}, {} free", format_bytes(needed),
             options_.hosts.empty() ? "" : " on " + options_.hosts[rank], format_bytes(free));
      snapshot_->allocate(pinned);
    });
    return true;
  } catch (const AgreedError& none) {
    if (none.exit() == Exit::suspect_node) throw;
    snapshot_->release();  // what this rank has got, where others have not
    if (rank == 0)
      log::warning("no room for a copy of the state ({}): training waits while checkpoints are written", none.what());
    return false;
  }
}

void CheckpointWriter::check_lease() const {
  if (options_.lease && !options_.lease->is_ours())
    throw Error(Exit::suspect_node, options_.lease->why_lost(), "this instance ends and writes nothing more");
}

void CheckpointWriter::start(const ShardedModel& model, const ShardedAdamW& optimizer, const RunState& state,
                             const nlohmann::json& extra) {
  commit();
  settle();
  plan_files(model, optimizer);
  auto job = std::make_unique<Job>();
  job->point = state.point();
  job->replaces_older = !options_.goes_back || state.losses.skips_in_a_row == 0;
  job->final_name = checkpoints_in(run_dir_) / step_name(state.step);
  // Each save has a name of its own: a network file system may still know the last one's as something else. The next
  // start knows by this name what a killed one has left (retention.cpp).
  job->temporary = fmt::format("{}.tmp{}-{}", job->final_name.string(),
                               options_.lease ? "-" + options_.lease->nonce() : "", ++saves_);
  if (const auto file = files_->file_of(trainers_.rank())) job->own_file = file_name(*file, files_->files());
  try {
    on_root(trainers_, [&] {
      check_lease();                                          // a folder that was moved must not come into being anew
      remove_leftover_checkpoints(checkpoints_in(run_dir_));  // what could not be deleted before
      if (failure_) remove_damaged_checkpoints(checkpoints_in(run_dir_));  // for want of room, perhaps
      job->manifest = extra;
      job->manifest["step"] = state.step;
      job->manifest["samples"] = state.samples;
      job->manifest["state"] = state.to_json();
      job->ledger = state.ledger;
      if (!state.ledger.empty()) job->manifest["ledger"] = ledger_name;
      std::error_code ignored;
      std::filesystem::remove_all(job->temporary, ignored);
      make_directories(job->temporary);
    });
  } catch (const AgreedError& failed) {
    if (failed.exit() == Exit::suspect_node) throw;
    if (trainers_.is_root()) log::warning("no checkpoint at step {}: {}", state.step, failed.what());
    failure_ = failed;
    return;
  }
  job_ = std::move(job);
  stage_ = Stage::writing;
  if (has_room_) {
    snapshot_->copy(optimizer);
    job_->thread = std::jthread([this, &job = *job_] {
      const Stopwatch watch;
      job.write(*snapshot_, [this](const Snapshot::Entry& entry) { return snapshot_->copied(entry); });
      job.seconds = watch.seconds();
    });
  } else {
    job_->write(*snapshot_, [&](const Snapshot::Entry& entry) { return Snapshot::present(optimizer, entry); });
    trainers_.barrier();  // here, where the limits allow for a slow disk
  }
}

bool CheckpointWriter::commit() {
  if (stage_ != Stage::writing) return false;
  stage_ = Stage::idle;
  const auto job = std::move(job_);
  const Stopwatch waiting;
  if (job->thread.joinable()) job->thread.join();
  seconds_beside_training_ = std::max(0.0, job->seconds - waiting.seconds());
  const auto reports = trainers_.gather_strings(job->report);
  std::string read_back;  // who looks at which file
  try {
    on_root(trainers_, [&] { read_back = publish(*job, reports); });
  } catch (const AgreedError& failed) {
    if (failed.exit() == Exit::numerics || failed.exit() == Exit::suspect_node) throw;
    if (trainers_.is_root())
      log::warning("no checkpoint at step {}: {}; earlier checkpoints stay", job->point.step, failed.what());
    failure_ = failed;
    return false;
  }
  failure_.reset();
  has_published_ = true;
  step_before_ = std::exchange(last_step_, job->point.step);
  point_before_ = std::exchange(last_point_, job->point);

  std::vector<CheckpointFile> own;
  for (const auto& file : nlohmann::json::parse(trainers_.broadcast(std::move(read_back))))
    if (file["reader"] == trainers_.rank()) own.push_back(file.get<CheckpointFile>());
  last_replaces_older_ = job->replaces_older;
  read_back_ = std::make_unique<ReadBack>(job->final_name, std::move(own));
  stage_ = Stage::reading_back;
  return true;
}

// The files that all ranks have written, with their writers. Of several errors the gravest is thrown. `hosts`: of the
// ranks, where they are known.
static std::vector<std::pair<int, CheckpointFile>> files_of(const std::vector<std::string>& reports,
                                                            const std::vector<std::string>& hosts) {
  std::vector<std::pair<int, CheckpointFile>> files;
  std::optional<Error> error;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const auto report = nlohmann::json::parse(reports[rank]);
    if (report.is_array()) {
      for (const auto& file : report) files.emplace_back(static_cast<int>(rank), file.get<CheckpointFile>());
    } else if (const auto exit = report["exit"].get<Exit>(); !error || exit == Exit::numerics) {
      const auto host = hosts.empty() ? "" : fmt::format(" ({})", hosts[rank]);
      error =
          Error(exit, fmt::format("rank {}{}: {}", report["rank"].get<int>(), host, report["error"].get<std::string>()),
                report["hint"]);
    }
  }
  if (error) throw Error(*error);
  return files;
}

// Where each tensor lies in these files.
static std::map<std::string, CheckpointTensor> table_of(const FilePlan& plan, const std::vector<std::string>& kinds,
                                                        const std::vector<CheckpointFile>& files) {
  std::map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < files.size(); ++i) number[files[i].name] = i;
  std::map<std::string, CheckpointTensor> tensors;
  for (int file = 0; file < plan.files(); ++file)
    for (const auto& slice : plan.slices_of(file))
      for (const auto& kind : kinds) {
        auto& tensor = tensors[CheckpointManifest::key(kind, slice.name)];
        tensor.shape = slice.shape;
        tensor.channels_last = slice.channels_last;
        tensor.parts.push_back({number.at(file_name(file, plan.files())), slice.begin, slice.end});
      }
  for (auto& [key, tensor] : tensors) std::ranges::sort(tensor.parts, {}, [](const auto& part) { return part.begin; });
  return tensors;
}

// Where the directory stands under its name, it is published, whatever was said of the renaming.
void CheckpointWriter::publish_under_its_name(const Job& job) {
  try {
    publish_directory(job.temporary, job.final_name);
  } catch (const Error& failed) {
    std::error_code error;
    if (!std::filesystem::exists(job.final_name, error) || std::filesystem::exists(job.temporary, error)) throw;
    log::warning("{} is there, although: {}", job.final_name.string(), failed.what());
  }
}

// Rank 0, with what all ranks have written: the manifest, then the directory under its final name, or nothing at all.
// Returns who reads which file back.
std::string CheckpointWriter::publish(const Job& job, const std::vector<std::string>& reports) {
  try {
    const auto written = files_of(reports, options_.hosts);
    std::vector<CheckpointFile> files;
    for (const auto& [rank, file] : written) files.push_back(file);
    const auto manifest =
        CheckpointManifest::write(job.temporary, job.manifest, files, table_of(*files_, snapshot_->kinds(), files));
    if (crossed(options_.keep_every, last_point_, job.point)) keep_for_good(job.temporary);
    check_lease();
    if (!has_published_) abandon_newer(run_dir_, options_.begins_elsewhere ? 0 : last_point_.step);
    if (std::filesystem::exists(job.final_name)) {  // a damaged one of the same step, passed over at the start
      const auto trash = job.final_name.string() + ".trash";
      std::filesystem::remove_all(trash);
      std::filesystem::rename(job.final_name, trash);
      std::filesystem::remove_all(trash);
    }
    std::error_code none;
    std::filesystem::remove(run_dir_ / run_file::done, none);  // of an earlier, shorter start: the run has gone on
    publish_under_its_name(job);

    auto read_back = nlohmann::json::array();
    const auto add = [&](int writer, const CheckpointFile& file) {
      read_back.push_back(file);
      read_back.back()["reader"] = reader_of(writer);
    };
    for (const auto& [rank, file] : written) add(rank, file);
    for (const auto& file : manifest) add(0, file);
    return read_back.dump();
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(job.temporary, ignored);
    throw;
  }
}

// A trainer of another node where there is one, so that no cache answers for the disk; each has as many to read as any.
int CheckpointWriter::reader_of(int writer) const {
  const int ranks = trainers_.size();
  if (options_.hosts.empty()) return (writer + 1) % ranks;
  const auto& host = options_.hosts[static_cast<std::size_t>(writer)];
  const auto neighbours = static_cast<int>(std::ranges::count(options_.hosts, host));
  const auto turn = static_cast<int>(unread_.size());  // another one, where that one's way to the storage is broken
  for (int distance = neighbours + turn; distance < neighbours + turn + ranks; ++distance)
    if (const int reader = (writer + distance) % ranks; options_.hosts[static_cast<std::size_t>(reader)] != host)
      return reader;
  return (writer + 1) % ranks;
}

// What the first trainer says that has something to say.
static std::optional<std::string> first_of(const Group& trainers, const std::string& mine) {
  for (auto& text : trainers.all_gather_strings(mine))
    if (!text.empty()) return std::move(text);
  return std::nullopt;
}

CheckpointWriter::Found CheckpointWriter::settle() {
  if (stage_ != Stage::reading_back) return Found::whole;
  stage_ = Stage::idle;
  const auto read_back = std::move(read_back_);
  const Stopwatch waiting;
  read_back->wait();
  seconds_beside_training_ += std::max(0.0, read_back->seconds() - waiting.seconds());
  const auto damage = first_of(trainers_, read_back->damage()),
             unreadable = first_of(trainers_, read_back->unreadable());
  const bool is_root = trainers_.is_root();
  if (!damage && !unreadable) {
    if (is_root && last_replaces_older_) delete_old(run_dir_, last_step_, options_.keep, unread_);
    trainers_.barrier();  // deleting may take minutes: here, where the limits allow for a slow disk
    return Found::whole;
  }
  if (!damage) {
    unread_.insert(last_step_);
    if (is_root)
      log::warning("{} could not be read back: {}; it stays, and so do earlier checkpoints",
                   read_back->checkpoint().string(), *unreadable);
    return Found::unread;
  }
  const auto damaged_step = std::exchange(last_step_, step_before_);
  last_point_ = point_before_;
  if (is_root) {
    log::warning("{} was written, but cannot be read back as it was: {}; earlier checkpoints stay",
                 read_back->checkpoint().string(), *damage);
    if (!put_aside(read_back->checkpoint())) unread_.insert(damaged_step);
  }
  return Found::damaged;
}

bool CheckpointWriter::make_room() {
  return trainers_.any(trainers_.is_root() && remove_damaged_checkpoints(checkpoints_in(run_dir_)));
}

void CheckpointWriter::give_up_reading_back() {
  if (stage_ != Stage::reading_back) return;
  stage_ = Stage::idle;
  read_back_.reset();
}

}  // namespace millrace
