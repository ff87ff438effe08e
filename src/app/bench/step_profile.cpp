#include "bench/step_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "millrace/core/error.h"

namespace millrace {
namespace {

// ---- classes ----

constexpr std::ptrdiff_t kernels_in_text = 40;  // JSON has all

constexpr std::array<std::string_view, op_classes> class_names = {
    "convolution", "matrix product", "attention", "normalisation", "pointwise",
    "optimizer",   "communication",  "copy",      "other",         "idle"};

// ---- operations ----

struct Operation {
  const ProfileEvent* event;
  std::int64_t end;  // not after that of the operation around it
  OpClass op_class;
  bool begins_class;       // what is around it has another class
  std::int64_t self_time;  // ns, without the operations inside it
};

// The operations thread by thread, each after those around it.
std::vector<Operation> nest(std::span<const ProfileEvent> events) {
  std::vector<const ProfileEvent*> sorted;
  for (const auto& event : events)
    if (event.kind == ProfileEvent::Kind::operation) sorted.push_back(&event);
  std::ranges::sort(sorted, {}, [](const ProfileEvent* event) {
    return std::tuple(event->thread, event->begin, -event->end, event->id);
  });

  std::vector<Operation> operations;
  std::vector<std::size_t> around;  // operations that have not ended, the innermost last
  for (const auto* event : sorted) {
    const auto has_ended = [&](const Operation& earlier) {
      return earlier.event->thread != event->thread || earlier.end <= event->begin;
    };
    while (!around.empty() && has_ended(operations[around.back()])) around.pop_back();
    const auto own = class_of(event->name);
    Operation operation{event, event->end, own, true, event->end - event->begin};
    if (!around.empty()) {
      auto& parent = operations[around.back()];
      const bool has_class = parent.op_class != OpClass::idle && parent.op_class != OpClass::other;
      operation.op_class = has_class && own != OpClass::copy ? parent.op_class : own;
      operation.begins_class = operation.op_class != parent.op_class;
      operation.end = std::min(event->end, parent.end);
      operation.self_time = operation.end - event->begin;
      parent.self_time -= operation.self_time;
    }
    around.push_back(operations.size());
    operations.push_back(operation);
  }
  return operations;
}

bool within(const ProfileEvent& event, const ProfileEvent& window) {
  return event.begin >= window.begin && event.begin < window.end;
}

// ---- the two devices ----

class PerStep {
 public:
  explicit PerStep(StepProfile& profile) : profile_(profile), share_(1.0 / profile.steps) {}

  void add(StepProfile::Part& part, std::int64_t ns, bool is_call = true) const {
    part.ms += to_ms(ns);
    if (is_call) part.calls += share_;
  }
  void add(OpClass op_class, std::int64_t ns, bool is_call = true) const {
    add(profile_.classes[static_cast<std::size_t>(op_class)], ns, is_call);
  }
  void add_synchronisation() const { profile_.synchronisations += share_; }
  double to_ms(std::int64_t ns) const { return 1e-6 * static_cast<double>(ns) * share_; }

 private:
  StepProfile& profile_;
  double share_;
};

void count_operations(StepProfile& profile, std::span<const ProfileEvent> events, const ProfileEvent& window) {
  const PerStep per_step(profile);
  profile.ms = per_step.to_ms(window.end - window.begin);
  for (const auto& operation : nest(events)) {
    if (operation.event->thread != window.thread || !within(*operation.event, window)) continue;
    per_step.add(operation.op_class, operation.self_time,
                 operation.begins_class && operation.op_class != OpClass::idle);
    if (operation.event->name == "aten::_local_scalar_dense") per_step.add_synchronisation();
  }
}

using Work = std::vector<const ProfileEvent*>;  // by its beginning

// ns in which at least one of them ran.
std::int64_t time_of_any(const Work& events) {
  std::int64_t time = 0, covered_to = 0;
  for (const auto* event : events) {
    const auto begin = std::max(event->begin, covered_to);
    time += std::max<std::int64_t>(event->end - begin, 0);
    covered_to = std::max(covered_to, event->end);
  }
  return time;
}

bool is_copy_to_host(const ProfileEvent& event) {
  return event.name.starts_with("Memcpy DtoH");
}

// ns from the end of copies to the host to what ran next: the host looked at what it got first.
std::int64_t idle_behind_reads(const Work& events) {
  std::int64_t idle = 0;
  const ProfileEvent* last = nullptr;  // to end
  for (const auto* event : events) {
    if (last != nullptr && is_copy_to_host(*last)) idle += std::max<std::int64_t>(event->begin - last->end, 0);
    if (last == nullptr || event->end >= last->end) last = event;
  }
  return idle;
}

bool waits_for_gpu(const ProfileEvent& event) {
  return event.kind == ProfileEvent::Kind::runtime_call &&
         (event.name.starts_with("cudaStreamSynchronize") || event.name.starts_with("cudaDeviceSynchronize") ||
          event.name.starts_with("cudaEventSynchronize"));
}

void count_device_work(StepProfile& profile, std::span<const ProfileEvent> events, const ProfileEvent& window) {
  const auto operations = nest(events);
  std::unordered_map<std::uint64_t, const Operation*> launchers;
  for (const auto& operation : operations) launchers[operation.event->id] = &operation;
  const auto launcher_of = [&](const ProfileEvent& work) {
    const auto found = launchers.find(work.launched_by);
    return found == launchers.end() ? nullptr : found->second;
  };
  const auto class_of_work = [](const ProfileEvent& work, const Operation* launcher) {
    const auto by_name = class_of(work.name);
    if (by_name == OpClass::copy || launcher == nullptr) return by_name;
    return launcher->op_class == OpClass::idle || launcher->op_class == OpClass::other ? by_name : launcher->op_class;
  };

  const PerStep per_step(profile);
  std::map<std::pair<std::string_view, std::string_view>, StepProfile::Part> kernels;
  Work all_work;
  std::int64_t end = window.end, sum = 0;
  for (const auto& event : events) {
    if (waits_for_gpu(event) && within(event, window)) per_step.add_synchronisation();
    if (event.kind != ProfileEvent::Kind::device_work || event.begin < window.begin) continue;
    const auto time = event.end - event.begin;
    const auto* launcher = launcher_of(event);
    per_step.add(class_of_work(event, launcher), time);
    if (event.name.starts_with("Memcpy HtoD")) per_step.add(profile.to_device, time);
    if (is_copy_to_host(event)) per_step.add(profile.to_host, time);
    per_step.add(kernels[{launcher == nullptr ? "" : std::string_view(launcher->event->name), event.name}], time);
    all_work.push_back(&event);
    end = std::max(end, event.end);
    sum += time;
  }
  std::ranges::sort(all_work, {}, &ProfileEvent::begin);
  const auto busy = time_of_any(all_work);
  profile.ms = per_step.to_ms(end - window.begin);
  profile.overlap_ms = per_step.to_ms(sum - busy);
  profile.idle_behind_reads_ms = per_step.to_ms(idle_behind_reads(all_work));
  per_step.add(OpClass::idle, end - window.begin - busy, /*is_call=*/false);

  for (const auto& [names, part] : kernels)
    profile.kernels.push_back({std::string(names.first), std::string(names.second), part});
  std::ranges::stable_sort(profile.kernels, std::greater(), [](const auto& kernel) { return kernel.part.ms; });
}

// Without its arguments' types, and without the end of a long one: cuDNN's have told their tiles before it.
std::string_view short_name(std::string_view kernel) {
  constexpr std::size_t most_characters = 120;
  if (kernel.starts_with("void ")) kernel.remove_prefix(5);
  return kernel.substr(0, std::min(kernel.find(">("), most_characters));
}

double percent(const StepProfile& profile, double ms) {
  return 100 * ms / profile.ms;
}

}  // namespace

StepProfile summarise(std::span<const ProfileEvent> events, int steps, bool on_gpu) {
  const auto window = std::ranges::find_if(events, [](const auto& event) { return event.name == profiled_steps; });
  ensure(window != events.end(), "the profile holds the scope of its steps");
  StepProfile profile;
  profile.on_gpu = on_gpu;
  profile.steps = steps;
  on_gpu ? count_device_work(profile, events, *window) : count_operations(profile, events, *window);
  return profile;
}

std::string to_text(const StepProfile& p) {
  auto text = fmt::format("where the time of a step goes: {}, {} steps of {:.2f} ms under the profiler\n",
                          p.on_gpu ? "kernels on the GPU" : "operations on the CPU", p.steps, p.ms);
  text += fmt::format("{:<16} {:>10} {:>9} {:>12}\n", "", "ms a step", "share", p.on_gpu ? "kernels" : "operations");
  for (int i = 0; i < op_classes; ++i)
    text += fmt::format("{:<16} {:>10.3f} {:>7.2f} % {:>12.1f}\n", class_names[i], p.classes[i].ms,
                        percent(p, p.classes[i].ms), p.classes[i].calls);
  if (p.on_gpu) {
    text += fmt::format("host->device     {:>10.3f} {:>9} {:>12.1f}\n", p.to_device.ms, "of copy", p.to_device.calls);
    text += fmt::format("device->host     {:>10.3f} {:>9} {:>12.1f}\n", p.to_host.ms, "of copy", p.to_host.calls);
    text += fmt::format(
        "idle: no kernel runs, {:.3f} ms of it behind copies to the host. Kernels beside other kernels count "
        "twice: {:.3f} ms a step\n",
        p.idle_behind_reads_ms, p.overlap_ms);
  } else {
    text += "idle: what no operation accounts for\n";
  }
  text += fmt::format("synchronisations per step: {:.1f} ({})\n", p.synchronisations,
                      p.on_gpu ? "cudaStreamSynchronize, cudaDeviceSynchronize, cudaEventSynchronize"
                               : "aten::item, which would wait for a GPU");
  if (!p.kernels.empty()) text += "the kernels that take the longest: ms a step, calls, operation, name\n";
  for (const auto& [operation, name, part] : p.kernels | std::views::take(kernels_in_text))
    text += fmt::format("{:>10.3f} {:>8.1f}  {}  {}\n", part.ms, part.calls, operation, short_name(name));
  return text;
}

nlohmann::ordered_json to_json(const StepProfile& p) {
  nlohmann::ordered_json json = {{"device", p.on_gpu ? "cuda" : "cpu"},
                                 {"steps", p.steps},
                                 {"ms", p.ms},
                                 {"overlap_ms", p.overlap_ms},
                                 {"idle_behind_reads_ms", p.idle_behind_reads_ms}};
  for (int i = 0; i < op_classes; ++i)
    json["classes"].push_back({{"class", class_names[i]},
                               {"ms", p.classes[i].ms},
                               {"percent", percent(p, p.classes[i].ms)},
                               {"calls", p.classes[i].calls}});
  json["copies"] = {{{"direction", "host->device"}, {"ms", p.to_device.ms}, {"calls", p.to_device.calls}},
                    {{"direction", "device->host"}, {"ms", p.to_host.ms}, {"calls", p.to_host.calls}}};
  json["kernels"] = nlohmann::json::array();
  for (const auto& [operation, name, part] : p.kernels)
    json["kernels"].push_back({{"operation", operation}, {"name", name}, {"ms", part.ms}, {"calls", part.calls}});
  json["synchronisations"] = p.synchronisations;
  return json;
}

}  // namespace millrace
