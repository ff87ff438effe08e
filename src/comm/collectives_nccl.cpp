#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "millrace/comm/agree.h"
#include "millrace/comm/backoff.h"
#include "millrace/comm/collectives.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/world.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stopwatch.h"
#include "wait_for_others.h"

namespace millrace {
namespace {

// With arguments that are right, a failure means that the GPU broke.
void check(cudaError_t code, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (code == cudaSuccess) return;
  fault::blame_this_rank();
  throw Error(
      Exit::suspect_node, fmt::format("CUDA failed at {}:{}: {}", file, line, cudaGetErrorString(code)),
      code == cudaErrorDevicesUnavailable
          ? "another process has that GPU, and `nvidia-smi -q -d COMPUTE` tells its mode: exclusive-process lets "
            "one rank use it"
          : "the kernel's log tells of a broken GPU, `millrace env` of the driver");
}

// Attaching to what another rank has made, and unlinking it, fail where that rank has ended.
bool lacks_shared_memory(std::string_view why) {
  if (why.find("attaching") != why.npos || why.find("unlink") != why.npos) return false;
  return why.find("shared memory segment") != why.npos || why.find("/dev/shm") != why.npos;
}

// As check_mpi: the network or another rank broke, or the GPU.
void check(ncclResult_t code, const char* what, int rank) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const std::string why = ncclGetLastError(nullptr);
  // Its buffers lie beside what LibTorch holds, and come with the first transfer of a kind: nothing is broken.
  if (code == ncclUnhandledCudaError && why.find("out of memory") != why.npos)
    throw Error(Exit::usage, fmt::format("rank {}: {}: its GPU has no memory left for NCCL: {}", rank, what, why),
                "a smaller batch.micro, model.gradient_checkpointing=true or parallel.strategy=full_shard leaves NCCL "
                "more than it has now");
  if (code == ncclSystemError && lacks_shared_memory(why)) {
    fault::blame_this_rank();
    throw Error(Exit::suspect_node, fmt::format("rank {}: {}: NCCL has no room in /dev/shm: {}", rank, what, why),
                "a larger /dev/shm (of a container: --shm-size=8g), or NCCL_SHM_DISABLE=1");
  }
  if (code == ncclUnhandledCudaError) fault::blame_this_rank();  // of NCCL's own calls to this rank's GPU
  throw Error(Exit::suspect_node, fmt::format("rank {}: {} failed: {}: {}", rank, what, ncclGetErrorString(code), why),
              "look for the first failing rank in the other logs");
}

// The thread's current GPU. Where it is that already, as LibTorch leaves it after work on it, nothing is set and put
// back: CUDA would make a context, half a GB, on the other one.
class CurrentGpu {
 public:
  explicit CurrentGpu(int device) : device_(device) {
    check(cudaGetDevice(&former_));
    if (former_ != device_) check(cudaSetDevice(device_));
  }
  ~CurrentGpu() {
    if (former_ != device_) cudaSetDevice(former_);
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int device_, former_ = 0;
};

ncclDataType_t type_of(Buffer data) {
  switch (data.type) {
    case WireType::f32:
      return ncclFloat32;
    case WireType::bf16:
      return ncclBfloat16;
    case WireType::byte:
      return ncclUint8;
  }
  throw Error(Exit::bug, "unknown element type");
}

ncclDataType_t summable_type_of(Buffer data) {
  ensure(data.type != WireType::byte, "collectives: bytes cannot be added");
  return type_of(data);
}

// For people, and behind the end of the line what tells machines apart whose containers have one name.
std::string place_of_gpu(int device) {
  char bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
  return fmt::format("{} of {}\n{}", bus_id, host_name(), boot_id());
}

// NCCL's own refusal would not say which ranks they are.
void refuse_shared_gpus(const Group& group, const std::string& mine) {
  const auto places = group.all_gather_strings(mine);
  for (auto place = places.begin(); place != places.end(); ++place) {
    const auto first = std::find(places.begin(), place, *place);
    if (first == place) continue;
    throw AgreedError({Exit::usage,
                       fmt::format("ranks {} and {} share GPU {}, which NCCL refuses", first - places.begin(),
                                   place - places.begin(), place->substr(0, place->find('\n'))),
                       "start no more ranks on a node than it has GPUs"},
                      group);
  }
}

// One for all communicators of a GPU, beside the compute stream: the kernels of two of them never run at once, which
// could deadlock. It lives until the process ends.
struct TransferStream {
  cudaStream_t stream = nullptr;
  cudaEvent_t joined = nullptr;  // what the compute stream was told to wait for last, by any communicator
};

TransferStream& transfer_stream(int device) {
  static std::mutex mutex;
  static std::map<int, TransferStream> streams;
  const std::lock_guard lock(mutex);
  auto& made = streams[device];
  if (made.stream) return made;
  int highest_priority = 0;
  check(cudaDeviceGetStreamPriorityRange(nullptr, &highest_priority));
  check(cudaStreamCreateWithPriority(&made.stream, cudaStreamNonBlocking, highest_priority));
  return made;
}

// Of this process. As all of NCCL, for one thread at a time.
std::vector<ncclComm_t>& communicators() {
  static std::vector<ncclComm_t> all;
  return all;
}

// A transfer waits for what the compute stream held when it was started, and the compute stream for transfers where it
// joins them, so that arithmetic and transfers run at the same time in between.
//
// The communicator and the events live until the process ends, as MpiGroup's do: ncclCommDestroy waits for the other
// ranks of the node, also when one of them is unwinding.
class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const Group& group, int device, void* (*compute_stream)(int device))
      : group_(group), device_(device), compute_stream_(compute_stream) {
    refuse_shared_gpus(group_, on_all(group_, [&] { return make_stream(); }));
    connect();
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void all_reduce_sum(Buffer data) override {
    const auto type = summable_type_of(data);
    run("NCCL all_reduce",
        [&] { return ncclAllReduce(data.data, data.data, data.count, type, ncclSum, comm_, stream_); });
  }

  void reduce_scatter_sum(Buffer data, Buffer own) override {
    ensure(data.count == own.count * size() && data.type == own.type, "reduce_scatter: sizes do not match");
    const auto type = summable_type_of(data);
    run("NCCL reduce_scatter",
        [&] { return ncclReduceScatter(data.data, own.data, own.count, type, ncclSum, comm_, stream_); });
  }

  void all_gather(Buffer own, Buffer all) override {
    ensure(all.bytes() == own.bytes() * size(), "all_gather: sizes do not match");
    run("NCCL all_gather", [&] { return ncclAllGather(own.data, all.data, own.count, type_of(own), comm_, stream_); });
  }

  void broadcast(Buffer data, int root) override {
    run("NCCL broadcast",
        [&] { return ncclBroadcast(data.data, data.data, data.count, type_of(data), root, comm_, stream_); });
  }

  void together(const std::function<void()>& calls) override {
    constexpr auto what = "NCCL transfers at once";
    const CurrentGpu current(device_);
    check(ncclGroupStart(), what, rank());
    in_group_ = true;
    try {
      calls();
    } catch (...) {
      in_group_ = false;
      ncclGroupEnd();
      throw;
    }
    in_group_ = false;
    check(ncclGroupEnd(), what, rank());
    finish_start(what);
  }

  bool is_done_at_once() const override { return false; }

  Mark mark() override {
    const CurrentGpu current(device_);
    if (spare_events_.empty()) spare_events_.push_back(make_event());
    marked_.push_back(spare_events_.back());
    spare_events_.pop_back();
    check(cudaEventRecord(marked_.back(), stream_));
    return joined_ + marked_.size();
  }

  // The stream is in order, so the last event stands for those before it; all of them are free then, because a wait is
  // for what an event recorded last, and stays so when it records again.
  void join(Mark mark) override {
    if (mark <= joined_) return;
    const auto count = static_cast<std::ptrdiff_t>(mark - joined_);
    const CurrentGpu current(device_);
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(compute_stream_(device_)), marked_.at(mark - joined_ - 1), 0));
    auto& joined = transfers_->joined;
    if (joined) spare_events_.push_back(joined);
    joined = marked_.at(static_cast<std::size_t>(count) - 1);
    spare_events_.insert(spare_events_.end(), marked_.begin(), marked_.begin() + count - 1);
    marked_.erase(marked_.begin(), marked_.begin() + count);
    joined_ = mark;
  }

  // Device synchronisation would wait for ever for a rank that hangs, and nobody would know what for. As long as this
  // rank's own GPU computes, the others wait for it, not it for them: the watchdog has to know that.
  void wait(const std::function<void()>& meanwhile) override {
    constexpr auto what = "NCCL transfers";
    const CurrentGpu current(device_);
    check(cudaEventRecord(own_work_, static_cast<cudaStream_t>(compute_stream_(device_))));
    check(cudaEventRecord(end_, stream_));
    const auto done = [&] {
      poll(what);
      return is_over(end_);
    };
    while (!done()) {
      finish_own_work(what, meanwhile);
      wait_for_others([&] { return done() || computes(); }, group_.time_limit(), what);
    }
  }

 private:
  // All that a rank can fail at alone. Returns what tells its GPU from those of the others.
  std::string make_stream() {
    const CurrentGpu current(device_);
    transfers_ = &transfer_stream(device_);
    stream_ = transfers_->stream;
    for (auto* event : {&begin_, &end_, &own_work_}) *event = make_event();
    return place_of_gpu(device_);
  }

  static cudaEvent_t make_event() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }

  static bool is_over(cudaEvent_t event) {
    const auto state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) check(state);
    return state == cudaSuccess;
  }

  // Whether the compute stream has work that waits for no transfer: what the last transfer waits for, or what came
  // behind it. Where the compute stream joined one between, as full_shard and bfloat16 sums do in backward, it is not
  // known, and taken for waiting, which blames nobody.
  bool computes() const {
    if (!is_over(begin_)) return is_there(joined_before_);
    return !is_over(own_work_) && is_there(transfers_->joined);
  }
  static bool is_there(cudaEvent_t joined) { return !joined || is_over(joined); }

  void finish_own_work(const char* what, const std::function<void()>& meanwhile) {
    for (Backoff backoff; computes(); backoff.pause()) {
      poll(what);
      meanwhile();
      if (backoff.awake_seconds() <= group_.time_limit()) continue;
      fault::blame_this_rank();
      throw Error(
          Exit::suspect_node,
          fmt::format("rank {}: its GPU has computed for {:.0f} s without end", world_rank(), group_.time_limit()),
          "a GPU that hangs: the kernel's log may tell of it");
    }
  }

  void connect() {
    constexpr auto what = "NCCL init";
    warn_of_older_nccl();
    ncclUniqueId id = {};
    on_root(group_, [&] { check(ncclGetUniqueId(&id), what, rank()); });
    group_.broadcast(std::as_writable_bytes(std::span(&id, 1)));

    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // a call returns at once, so that the limit on waiting is the group's
    // A CTA holds a multiprocessor while it runs (an H100 has 132), and buffers on the GPU for good; NCCL would take up
    // to 32. Not tuned on a machine: NCCL_MAX_CTAS overrides it.
    config.maxCTAs = 16;
    const CurrentGpu current(device_);
    check(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), what, rank());
    communicators().push_back(comm_);
    finish_start(what);
  }

  template <class Call>
  void run(const char* what, Call call) {
    const CurrentGpu current(device_);
    check(cudaEventRecord(begin_, static_cast<cudaStream_t>(compute_stream_(device_))));
    check(cudaStreamWaitEvent(stream_, begin_, 0));
    joined_before_ = transfers_->joined;
    check(call(), what, rank());
    if (!in_group_) finish_start(what);
  }

  // Another one may lie where LD_LIBRARY_PATH leads.
  void warn_of_older_nccl() const {
    int loaded = 0;
    check(ncclGetVersion(&loaded), "ncclGetVersion", rank());
    if (loaded < NCCL_VERSION_CODE && rank() == 0)
      log::warning(
          "NCCL {}.{}.{} is loaded, older than the {}.{}.{} that this program was built with: see LD_LIBRARY_PATH",
          loaded / 10000, loaded % 10000 / 100, loaded % 100, NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  }

  // NCCL starts what it was asked for in a thread, which connects ranks at first; only then does the stream hold it.
  // What its other threads found broken since the call before comes to light here as well. By itself it would try for
  // hours to reach a host behind a firewall.
  void finish_start(const char* what) {
    constexpr double slow_seconds = 60, longest_seconds = 600;
    const Stopwatch since;
    bool told = false;
    const auto started = [&] {
      if (!told && rank() == 0 && since.seconds() > slow_seconds) {
        log::warning(
            "{}: NCCL has not connected the trainers in {:.0f} s: NCCL_DEBUG=INFO tells by which network it tries, "
            "NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose another",
            what, slow_seconds);
        told = true;
      }
      return poll(what);
    };
    wait_for_others(started, std::min(group_.time_limit(), longest_seconds), what);
  }

  // Throws what NCCL's threads found broken; true when the stream holds all calls made. All communicators are asked:
  // their transfers are in one stream, so what stands in one holds up those of the others.
  bool poll(const char* what) {
    bool is_started = true;
    for (auto* const communicator : communicators()) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(communicator, &state), what, rank());
      check(state, what, rank());
      if (communicator == comm_) is_started = state != ncclInProgress;
    }
    return is_started;
  }

  Group group_;
  int device_;
  void* (*compute_stream_)(int device);
  TransferStream* transfers_ = nullptr;
  cudaStream_t stream_ = nullptr;  // its stream
  // In the compute stream where the last transfer began, at the end of all transfers, in the compute stream at a
  // `wait`.
  cudaEvent_t begin_ = nullptr, end_ = nullptr, own_work_ = nullptr;
  cudaEvent_t joined_before_ = nullptr;  // the stream's `joined` when the last transfer began
  bool in_group_ = false;
  ncclComm_t comm_ = nullptr;
  std::vector<cudaEvent_t> marked_, spare_events_;  // marked_: of the marks behind `joined_`, in order
  Mark joined_ = 0;
};

}  // namespace

std::unique_ptr<Collectives> make_device_collectives(const Group& group, int device,
                                                     void* (*compute_stream)(int device)) {
  return std::make_unique<NcclCollectives>(group, device, compute_stream);
}

std::string last_words_of_devices() {
  const char* const text = ncclGetLastError(nullptr);
  return text ? text : "";
}

}  // namespace millrace
