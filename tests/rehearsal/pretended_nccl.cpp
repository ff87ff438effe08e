#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bfloat16.h"
#include "pretended_gpu.h"

namespace pretended {
namespace {

constexpr int most_ranks = 16;
constexpr std::size_t slot_bytes = 1 << 20;
constexpr int garbage = 0xff;

// What all ranks have to ask for alike.
struct Shape {
  char operation[16] = {};
  std::size_t count = 0;
  int type = 0, root = 0;
  int place = 0;  // in its group, before that is shuffled: calls may be alike otherwise

  bool operator==(const Shape&) const = default;
};

// Memory that the ranks of a communicator share.
struct Shared {
  std::atomic<std::uint32_t> joined, arrived, turn;
  std::array<Shape, most_ranks> asked;
  std::byte slots[most_ranks][slot_bytes];
};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
  }
  return 0;
}

// Ranks in their order, in float32; a bfloat16 sum is rounded once.
template <class Number, class Widen, class Narrow>
void add_up(std::span<const std::byte* const> parts, std::byte* sum, std::size_t bytes, Widen widen, Narrow narrow) {
  const auto at = [](const std::byte* numbers, std::size_t i) {
    Number number;
    std::memcpy(&number, numbers + i * sizeof number, sizeof number);
    return number;
  };
  for (std::size_t i = 0; i < bytes / sizeof(Number); ++i) {
    float total = widen(at(parts[0], i));
    for (const auto* part : parts.subspan(1)) total += widen(at(part, i));
    const Number number = narrow(total);
    std::memcpy(sum + i * sizeof number, &number, sizeof number);
  }
}

}  // namespace

// Of the calls of one rank: the Shared is that of all ranks.
struct Communicator {
  Shared* shared = nullptr;
  int rank = 0, size = 0, device = 0;
  std::minstd_rand dice;  // the same on all ranks
  std::atomic<ncclResult_t> state = ncclInProgress;

  struct Call {
    Shape shape;
    const std::byte* from;
    std::byte* to;
  };
  // In a stream.
  void run(const Call& call) const;

 private:
  void meet() const;
  void meet_in(const Shape& shape) const;
  // Gives `bytes` from `own` (null: nothing) to all, in pieces; take(begin, count) may look at the slots then.
  void exchange(const std::byte* own, std::size_t bytes, bool is_spoiled,
                const std::function<void(std::size_t begin, std::size_t count)>& take) const;
  void add_slots(ncclDataType_t type, std::size_t begin, std::size_t count, std::byte* sum) const;
};

namespace {

std::mutex mutex;  // of the two
ncclResult_t broken = ncclSuccess;
std::string last_error;

// Of a thread's group of calls.
thread_local int open_groups = 0;
thread_local std::vector<std::function<void()>> grouped;
thread_local std::vector<ncclComm_t> in_group;

// NCCL's own thread, in which calls are started after they have returned.
Stream& launcher() {
  static auto* const stream = new Stream(Stream::Kind::thread);
  return *stream;
}

void launch(std::vector<std::function<void()>> starts, std::vector<ncclComm_t> communicators) {
  for (auto* const communicator : communicators) communicator->state = ncclInProgress;
  launcher().push([starts = std::move(starts), communicators = std::move(communicators)] {
    nap();
    for (const auto& start : starts) start();
    for (auto* const communicator : communicators) {
      if (communicator->state.exchange(ncclSuccess) == ncclInProgress) continue;
      fmt::print(stderr, "rehearsal: a communicator was started already\n");
      std::fflush(stderr);
      std::abort();
    }
  });
}

ncclResult_t start(ncclComm_t communicator, cudaStream_t stream, Communicator::Call call) {
  if (communicator->state != ncclSuccess || !stream->is_on(communicator->device)) return ncclInvalidUsage;
  call.shape.place = static_cast<int>(grouped.size());
  const auto start = [=] { stream->push([=] { communicator->run(call); }); };
  if (open_groups > 0) {
    grouped.push_back(start);
    // Once: told a second time that it has started, it would already begin the next group.
    if (std::ranges::find(in_group, communicator) == in_group.end()) in_group.push_back(communicator);
    return ncclSuccess;
  }
  launch({start}, {communicator});
  return ncclInProgress;
}

Communicator::Call call_of(std::string_view operation, const void* from, void* to, std::size_t count,
                           ncclDataType_t type, int root = 0) {
  Communicator::Call call{
      {.count = count, .type = type, .root = root}, static_cast<const std::byte*>(from), static_cast<std::byte*>(to)};
  operation.copy(call.shape.operation, sizeof call.shape.operation - 1);
  return call;
}

}  // namespace

void Communicator::meet() const {
  const auto turn = shared->turn.load();
  if (shared->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
    shared->arrived = 0;
    ++shared->turn;
    return;
  }
  for (int looks = 0; shared->turn == turn; ++looks)
    looks < 100 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(20));
}

// Real ranks that ask for different things exchange nonsense or wait for ever; here they wait.
void Communicator::meet_in(const Shape& shape) const {
  shared->asked[static_cast<std::size_t>(rank)] = shape;
  meet();
  const auto others = std::span(shared->asked).first(static_cast<std::size_t>(size));
  const bool is_one = std::ranges::all_of(others, [&](const Shape& other) { return other == shape; });
  while (!is_one) std::this_thread::sleep_for(std::chrono::hours(1));
  meet();
}

void Communicator::exchange(const std::byte* own, std::size_t bytes, bool is_spoiled,
                            const std::function<void(std::size_t begin, std::size_t count)>& take) const {
  for (std::size_t begin = 0; begin < bytes; begin += slot_bytes) {
    const auto count = std::min(slot_bytes, bytes - begin);
    if (own) std::memcpy(shared->slots[rank], own + begin, count);
    if (own && is_spoiled) std::memset(const_cast<std::byte*>(own) + begin, garbage, count);
    meet();
    take(begin, count);
    meet();
  }
}

void Communicator::add_slots(ncclDataType_t type, std::size_t begin, std::size_t count, std::byte* sum) const {
  std::vector<const std::byte*> parts;
  for (int from = 0; from < size; ++from) parts.push_back(shared->slots[from] + begin);
  const auto same = [](float value) { return value; };
  type == ncclFloat32 ? add_up<float>(parts, sum, count, same, same)
                      : add_up<std::uint16_t>(parts, sum, count, millrace::widen, millrace::narrow);
}

void Communicator::run(const Call& call) const {
  nap();
  meet_in(call.shape);
  const auto type = static_cast<ncclDataType_t>(call.shape.type);
  const auto bytes = call.shape.count * pretended::bytes_of(type);
  const auto ranks = static_cast<std::size_t>(size), mine = static_cast<std::size_t>(rank) * bytes;
  const std::string_view operation = call.shape.operation;
  if (operation == "all_reduce") {
    exchange(call.from, bytes, true,
             [&](std::size_t begin, std::size_t count) { add_slots(type, 0, count, call.to + begin); });
  } else if (operation == "reduce_scatter") {
    std::vector<std::byte> sum(bytes);  // `to` may be a part of `from`
    if (call.to < call.from || call.to >= call.from + ranks * bytes) std::memset(call.to, garbage, bytes);
    exchange(call.from, ranks * bytes, false, [&](std::size_t begin, std::size_t count) {
      const auto first = std::max(begin, mine), last = std::min(begin + count, mine + bytes);
      if (first < last) add_slots(type, first - begin, last - first, sum.data() + (first - mine));
    });
    std::ranges::copy(sum, call.to);
  } else if (operation == "all_gather") {
    // The own part may be read meanwhile where it is in place: nothing else is written there at any time.
    const std::vector<std::byte> own(call.from, call.from + bytes);
    for (std::size_t from = 0; from < ranks; ++from)
      if (call.to + from * bytes != call.from) std::memset(call.to + from * bytes, garbage, bytes);
    exchange(own.data(), bytes, false, [&](std::size_t begin, std::size_t count) {
      for (std::size_t from = 0; from < ranks; ++from)
        std::memcpy(call.to + from * bytes + begin, shared->slots[from], count);
    });
  } else {
    const bool is_root = rank == call.shape.root;
    if (!is_root) std::memset(call.to, garbage, bytes);
    exchange(is_root ? call.from : nullptr, bytes, false, [&](std::size_t begin, std::size_t count) {
      std::memmove(call.to + begin, shared->slots[call.shape.root], count);
    });
  }
  nap();
}

void fail_nccl(ncclResult_t code, std::string why) {
  const std::lock_guard lock(mutex);
  broken = code;
  last_error = std::move(why);
}

void mend() {
  fail_gpu(cudaSuccess);
  fail_nccl(ncclSuccess, "");
}

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t) {
  const std::lock_guard lock(mutex);
  static std::string told;
  told = last_error;
  return told.c_str();
}

// Shared by whoever opens it by this name, and gone with the last of them.
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const int memory = ::memfd_create("pretended-nccl", 0);
  if (memory < 0 || ::ftruncate(memory, sizeof(Shared)) != 0) return ncclSystemError;
  *fmt::format_to_n(id->internal, sizeof id->internal - 1, "/proc/{}/fd/{}", ::getpid(), memory).out = '\0';
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || ranks > most_ranks) return ncclInvalidArgument;
  const int memory = ::open(id.internal, O_RDWR | O_CLOEXEC);
  if (memory < 0) return ncclSystemError;
  void* const shared = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  ::close(memory);
  if (shared == MAP_FAILED) return ncclSystemError;
  auto* const communicator = *made = new Communicator;
  communicator->shared = static_cast<Shared*>(shared);
  communicator->rank = rank;
  communicator->size = ranks;
  communicator->device = present_gpu();
  communicator->dice.seed(static_cast<unsigned>(std::hash<std::string_view>()(id.internal)));
  const auto own = fmt::format("/proc/{}/fd/", ::getpid());
  const int own_memory = std::string_view(id.internal).starts_with(own) ? std::stoi(id.internal + own.size()) : -1;
  launcher().push([communicator, own_memory] {
    nap();
    auto& joined = communicator->shared->joined;
    ++joined;
    while (joined < static_cast<std::uint32_t>(communicator->size))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (own_memory >= 0) ::close(own_memory);
    communicator->state = ncclSuccess;
  });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  const std::lock_guard lock(mutex);
  *state = broken != ncclSuccess ? broken : communicator->state.load();
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                           ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, call_of("all_reduce", from, to, count, type));
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, call_of("reduce_scatter", from, to, count, type));
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t communicator,
                           cudaStream_t stream) {
  return start(communicator, stream, call_of("all_gather", from, to, count, type));
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) {
  return start(communicator, stream, call_of("broadcast", from, to, count, type, root));
}

ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--open_groups > 0 || grouped.empty()) return ncclSuccess;
  std::ranges::shuffle(grouped, in_group[0]->dice);  // NCCL promises no order
  launch(std::exchange(grouped, {}), std::exchange(in_group, {}));
  return ncclInProgress;
}

}  // namespace pretended
