#pragma once
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Where the time of a step goes, from LibTorch's profiler (Kineto).
namespace millrace {

enum class OpClass {
  convolution,
  matrix_product,
  attention,
  normalisation,
  pointwise,  // element by element; sums and gathering rows, too: what takes the time is memory
  optimizer,
  communication,
  copy,  // also between layouts and dtypes, joining, filling with a number
  other,
  idle,  // on a GPU: no kernel runs. On the CPU: what no operation accounts for, C++ between them
};
constexpr int op_classes = 10;

// By the name alone: an operator's of LibTorch ("aten::addmm"), one of our own (kernels::OpScope), or a kernel's.
// `other` where no pattern fits.
OpClass class_of(std::string_view name);

// What is left of a profiler's event.
struct ProfileEvent {
  enum class Kind {
    operation,     // of LibTorch or an OpScope, on a thread
    runtime_call,  // of the CUDA runtime, on a thread
    device_work,   // a kernel, memcpy or memset on a GPU
  };
  Kind kind;
  std::string name;
  std::uint64_t thread;
  std::int64_t begin, end;        // ns
  std::uint64_t id = 0;           // of an operation; later ones have higher ones
  std::uint64_t launched_by = 0;  // device_work: the id of the innermost operation that launched it, 0 = none
};

struct StepProfile {
  struct Part {
    double ms = 0, calls = 0;  // of one step
  };
  bool on_gpu = false;
  int steps = 0;
  double ms = 0;                           // wall time of one step while the profiler watched
  std::array<Part, op_classes> classes{};  // by OpClass; calls are kernels on a GPU, operations on the CPU
  double overlap_ms = 0;                   // of one step: kernels beside other kernels, which `classes` count twice
  double idle_behind_reads_ms = 0;         // of one step: a part of `idle`, from a copy to the host to what ran next
  Part to_device, to_host;                 // memcpy host->device and device->host, a part of `copy`
  struct Kernel {
    std::string operation, name;  // the innermost operation that launched it, empty if none did
    Part part;
  };
  std::vector<Kernel> kernels;  // on a GPU: by name and operation, what takes the longest first
  double synchronisations = 0;  // of one step: waits for the GPU; on the CPU: reads of a number out of a tensor
};

// The scope around the steps whose events are counted.
constexpr const char* profiled_steps = "millrace::profiled_steps";

// Events of `steps` steps in a scope of that name; others are passed over. Throws Error(bug) if it is not there.
//
// An operation counts for the class of the outermost operation around it that has one, so that matrix products inside
// an attention are attention, but a copy is a copy wherever it happens. On the CPU an operation's time is its own,
// without those inside it, on the thread of the scope. On a GPU it is that of the kernels it launched; all memcpy and
// memset are copies.
StepProfile summarise(std::span<const ProfileEvent> events, int steps, bool on_gpu);

// Runs `step` once to warm up and then a few times, all under the profiler; waits for the device.
StepProfile profile_steps(torch::Device device, const std::function<void()>& step);

// A table of lines. The same as {"device", "steps", "ms", "overlap_ms", "idle_behind_reads_ms", "classes": [{"class",
// "ms", "percent", "calls"}], "copies": [{"direction", "ms", "calls"}], "kernels": [{"operation", "name", "ms",
// "calls"}], "synchronisations"}; ms, calls and synchronisations of one step.
std::string to_text(const StepProfile& profile);
nlohmann::ordered_json to_json(const StepProfile& profile);

}  // namespace millrace
