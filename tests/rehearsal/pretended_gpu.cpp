#include "pretended_gpu.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace pretended {
namespace {

constexpr int gpus = 1000;
constexpr int garbage = 0xff;                        // a NaN in all types
constexpr auto patience = std::chrono::minutes(10);  // longer than ranks wait for each other
constexpr double longest_nap_seconds = 3e-4;

std::atomic<cudaError_t> failure = cudaSuccess;
thread_local int current_device = 0;

// When an event was recorded: whether its stream has come there.
struct Moment {
  std::mutex mutex;
  std::condition_variable is_there;
  bool has_come = false;

  void come() {
    const std::lock_guard lock(mutex);
    has_come = true;
    is_there.notify_all();
  }
  bool is_over() {
    const std::lock_guard lock(mutex);
    return has_come;
  }
  // A real stream would wait for ever; a test that does says so.
  void wait() {
    std::unique_lock lock(mutex);
    if (is_there.wait_for(lock, patience, [&] { return has_come; })) return;
    fmt::print(stderr, "rehearsal: what a stream waits for has not come in 10 minutes\n");
    std::fflush(stderr);
    std::abort();
  }
};

std::uint64_t seed() {
  const auto number_of = [](const char* name) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : 0;
  };
  return 1000 * number_of("MILLRACE_REHEARSAL_SEED") + number_of("OMPI_COMM_WORLD_RANK");
}

}  // namespace

struct Event {
  int device = 0;
  std::shared_ptr<Moment> recorded;
};

struct Stream::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  bool is_busy = false;

  [[noreturn]] void work() {
    while (true) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex);
        is_busy = false;
        changed.notify_all();
        changed.wait(lock, [&] { return !waiting.empty(); });
        is_busy = true;
        next = std::move(waiting.front());
        waiting.pop_front();
      }
      next();
    }
  }
};

Stream::Stream(Kind kind) {
  if (kind == Kind::at_once) return;
  device_ = current_device;
  queue_ = new Queue;
  std::thread([queue = queue_] { queue->work(); }).detach();
}

void Stream::push(std::function<void()> work) {
  if (!queue_) return work();
  const std::lock_guard lock(queue_->mutex);
  queue_->waiting.push_back(std::move(work));
  queue_->changed.notify_all();
}

void Stream::synchronize() {
  if (!queue_) return;
  std::unique_lock lock(queue_->mutex);
  queue_->changed.wait(lock, [&] { return queue_->waiting.empty() && !queue_->is_busy; });
}

void* host_stream(int) {
  static auto* const stream = new Stream(Stream::Kind::at_once);
  return stream;
}

void nap() {
  static std::mutex mutex;
  static std::mt19937_64 chance(seed());
  double seconds = 0;
  {
    const std::lock_guard lock(mutex);
    // Mostly none at all, else the longest ones would hide all others.
    if (chance() % 2 == 0) seconds = std::uniform_real_distribution(0.0, longest_nap_seconds)(chance);
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

int present_gpu() {
  return current_device;
}

void fail_gpu(cudaError_t code) {
  failure = code;
}

const char* cudaGetErrorString(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "no error";
    case cudaErrorDevicesUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = gpus;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= gpus) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  if (lowest) *lowest = 0;
  if (highest) *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream(Stream::Kind::thread);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->synchronize();
  return failure;
}

// Both stand for what the event recorded last, also where it records again later.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto moment = event->recorded) stream->push([moment] { moment->wait(); });
  return failure;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (failure != cudaSuccess) return failure;
  return !event->recorded || event->recorded->is_over() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event{current_device, nullptr};
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!stream->is_on(event->device)) return cudaErrorInvalidResourceHandle;
  const auto moment = std::make_shared<Moment>();
  event->recorded = moment;
  stream->push([moment] { moment->come(); });
  return failure;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = ::operator new(bytes);
  std::memset(*memory, garbage, bytes);
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  ::operator delete(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return failure;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  stream->push([=] { cudaMemcpy(to, from, bytes, kind); });
  return failure;
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  stream->push([=] { std::memset(memory, value, bytes); });
  return failure;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  stream->push([=] { function(argument); });
  return failure;
}

}  // namespace pretended
