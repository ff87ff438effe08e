#include <kineto/ActivityType.h>
#include <stdlib.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <optional>
#include <set>
#include <vector>

#include "bench/step_profile.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

namespace profiler = torch::autograd::profiler;

constexpr int steps_to_profile = 3;  // one step is like the other; three show a stall that comes now and then

// Nothing for what is not of the step: annotations that repeat kernels, the profiler's own work.
std::optional<ProfileEvent::Kind> kind_of(const profiler::KinetoEvent& event) {
  switch (static_cast<libkineto::ActivityType>(event.activityType())) {
    case libkineto::ActivityType::CPU_OP:
      return ProfileEvent::Kind::operation;
    case libkineto::ActivityType::CUDA_RUNTIME:
      return ProfileEvent::Kind::runtime_call;
    case libkineto::ActivityType::CONCURRENT_KERNEL:
    case libkineto::ActivityType::GPU_MEMCPY:
    case libkineto::ActivityType::GPU_MEMSET:
      return ProfileEvent::Kind::device_work;
    default:
      return std::nullopt;
  }
}

std::vector<ProfileEvent> events_of(const profiler::ProfilerResult& result) {
  std::vector<ProfileEvent> events;
  for (const auto& event : result.events())
    if (const auto kind = kind_of(event))
      events.push_back({*kind, event.name(), event.startThreadId(), static_cast<std::int64_t>(event.startNs()),
                        static_cast<std::int64_t>(event.endNs()), event.correlationId(), event.linkedCorrelationId()});
  return events;
}

}  // namespace

StepProfile profile_steps(torch::Device device, const std::function<void()>& step) {
  if (device.is_cpu()) ::setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // it complains that there is no driver
  std::set<profiler::ActivityType> activities = {profiler::ActivityType::CPU};
  if (device.is_cuda()) activities.insert(profiler::ActivityType::CUDA);
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  step();  // the profiler's own first time is long
  synchronize(device);
  {
    const kernels::OpScope scope(profiled_steps);
    for (int i = 0; i < steps_to_profile; ++i) step();
  }
  synchronize(device);  // after the scope: not one of the steps' own
  const auto result = profiler::disableProfiler();
  return summarise(events_of(*result), steps_to_profile, device.is_cuda());
}

}  // namespace millrace
