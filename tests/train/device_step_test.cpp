// Steps of training on LibTorch's "meta" device, whose tensors have shapes and no memory: they go the way of a GPU but
// where the program asks for CUDA itself (pinned memory, NCCL, waits by its own name: scripts/check knows these), with
// the same kernels called and nothing computed. Host code that looks into such a tensor crashes, a copy out of one
// throws, and each number that the host asks for comes by here. So what a step asks of a device is seen without one.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <torch/library.h>
#include <torch/utils.h>

#include <functional>
#include <map>

#include "core/temp_dir.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/nn/fused.h"
#include "millrace/train/diffusion_task.h"
#include "millrace/train/loop.h"
#include "nn/meta_streams.h"
#include "parcels/encodings.h"
#include "small_unet.h"

namespace millrace {
namespace {

using Counts = std::map<std::string, int>;
Counts seen;

bool is_through = true;         // the device, with what has been started
std::function<void()> arrival;  // what happens while the host waits for that

struct DeviceWithStreams final : test::MetaStreams {
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    *event = const_cast<DeviceWithStreams*>(this);
    is_through = false;
  }
  // One nap long it is not.
  bool queryEvent(void*) const override {
    if (is_through) return true;
    ++seen["naps"];
    arrival();
    return std::exchange(is_through, true);
  }
  void block(void*, const c10::Stream&) const override { ++seen["streams ordered"]; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
const DeviceWithStreams device_with_streams;
const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::Meta, &device_with_streams);

// Addresses that nobody may read from or write to.
struct Addresses {
  explicit Addresses(std::size_t bytes) : bytes(std::max<std::size_t>(bytes, 1)) {
    begin = ::mmap(nullptr, this->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Addresses() { ::munmap(begin, bytes); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  std::size_t bytes;
  void* begin;
};

struct GuardedMemory final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const addresses = new Addresses(bytes);
    const auto free = [](void* context) { delete static_cast<Addresses*>(context); };
    return {addresses->begin, addresses, free, c10::Device(torch::kMeta)};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
};
GuardedMemory memory;

at::Tensor to_host(const at::Tensor& tensor) {
  if (!tensor.is_meta()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(torch::kCPU)).zero_();
}

at::Tensor to_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(torch::kMeta));
}

// For operations whose results on this device only Python knows the shapes of: has the CPU compute with zeros.
void find_shapes(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto inputs = operation.schema().arguments().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(inputs); value != stack->end(); ++value)
    if (value->isTensor()) *value = to_host(value->toTensor());
  operation.callBoxed(stack);
  const auto outputs = operation.schema().returns().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(outputs); value != stack->end(); ++value)
    if (value->isTensor()) *value = to_meta(value->toTensor());
}

at::Scalar tell_number(const at::Tensor& tensor) {
  ++seen["numbers read"];
  return tensor.scalar_type() == torch::kDouble ? at::Scalar(4.0) : at::Scalar(1.0f);
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("_local_scalar_dense", tell_number);
  library.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  for (const char* name : {"where.self_out", "where.self", "convolution", "convolution_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&find_shapes>());
}

bool is_in_bucket(const at::Tensor& tensor) {
  return tensor.is_meta() && tensor.scalar_type() == torch::kFloat32 && tensor.storage().nbytes() > tensor.nbytes();
}

int operations_under_way = 0;  // of LibTorch's for several tensors, which call others
struct UnderWay : at::ObserverContext {};

// Copies to the device, by the stream in which they are started; what puts gradients into the buckets; and parts of
// their norm that are started when the host has waited already.
std::unique_ptr<at::ObserverContext> look_at(const at::RecordFunction& operation) {
  const std::string_view name(operation.name());
  if (name.starts_with("aten::_foreach_")) {
    ++operations_under_way;
    ++seen["operations for several gradients"];
    const auto to = operation.inputs()[0].toTensorVector(), from = operation.inputs()[1].toTensorVector();
    for (std::size_t i = 0; i < to.size(); ++i)
      if (to[i].strides() != from[i].strides()) ++seen["gradients that keep all from sharing one kernel"];
    return std::make_unique<UnderWay>();
  }
  if (operations_under_way > 0) return nullptr;
  if (name == "millrace::square_sum" && seen.contains("numbers read")) ++seen["parts of the norm behind a read"];
  const auto inputs = operation.inputs();
  if (name == "millrace::sum_gradient" ||
      ((name == "aten::copy_" || name == "aten::add_") && is_in_bucket(inputs[0].toTensor())))
    ++seen["operations for one gradient"];
  if (name != "aten::copy_") return nullptr;
  if (inputs[0].toTensor().is_meta() && !inputs[1].toTensor().is_meta())
    ++seen[test::current_stream == test::copying ? "copies beside arithmetic"
           : inputs[2].toBool()                  ? "copies between arithmetic"
                                                 : "copies that are waited for"];
  return nullptr;
}

void look_after(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) --operations_under_way;
}

// As nn::place would, were it not for LibTorch, which does not let set_data lead there.
void place_on_meta(torch::nn::Module& module, torch::Dtype dtype) {
  for (const auto& parameter : module.parameters()) {
    const auto layout = parameter.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    const auto placed = torch::empty(parameter.sizes(), at::TensorOptions(torch::kMeta).dtype(dtype), layout);
    parameter.unsafeGetTensorImpl()->shallow_copy_from(placed.getIntrusivePtr());
  }
}

constexpr int share = 6, steps = 4;

// Says what was seen since the step before; ends after some steps.
class WatchedTask final : public DiffusionTask {
 public:
  using DiffusionTask::DiffusionTask;
  bool next_batch(double seconds) override {
    each_step.push_back(std::exchange(seen, {}));
    if (std::ssize(each_step) > steps) throw Error(Exit::suspect_node, "enough");
    const int given = receiver->given();
    const bool is_there = DiffusionTask::next_batch(seconds);
    if (receiver->given() > given) ++seen["batches that a step has waited for"];
    return is_there;
  }
  const test::ScriptedReceiver* receiver = nullptr;
  std::vector<Counts> each_step;  // the first one: before all steps
};

// What the host has asked of the device in each step but the first, whose first inputs nobody could send ahead, and the
// last, behind which there are none.
std::vector<Counts> counts_of_steps(const ObjectiveConfig& objective, int micro, torch::Dtype dtype, bool recomputes) {
  const test::TempDir folder;
  auto unet = test::make_small_unet();
  place_on_meta(*unet, dtype);
  unet->set_gradient_checkpointing(recomputes);
  test::ScriptedReceiver receiver;
  int parcels = 0;
  arrival = [&] {
    if (parcels < steps) receiver.put(0, 0, share * parcels++, share);
  };
  arrival();
  WatchedTask task(unet, NoiseSchedule(SchedulerConfig::stable_diffusion(Prediction::epsilon)),
                   BatchReceiver(receiver, {{0, 0}}, share), receiver,
                   {.objective = objective,
                    .seed = 420,
                    .global_batch = share,
                    .first_place = 0,
                    .latent_scale = {0.5, 0.25},
                    .null_text = torch::zeros({test::text_tokens, test::text_width}, torch::kHalf),
                    .text_encoder = {},
                    .device = torch::kMeta,
                    .dtype = dtype,
                    .producers = {0}});
  task.receiver = &receiver;
  const OptimConfig optim{.lr = 1e-4};
  ShardedModel model(*unet, execution_order(*unet), {}, {}, Group(), ShardedModel::Start::restored);
  ShardedAdamW optimizer(model, optim, {});
  LoopConfig config;
  config.run_dir = folder.path().string();
  config.duration = Duration::steps(100);
  config.batch = {share, micro};
  config.log.tensorboard = false;
  config.guard.hang_timeout = {Duration::seconds(20)};
  DataPlan data;
  data.stripes.stripes = 1;
  data.stripes.splits.push_back({0, 0, 1});
  data.manifest.archives.emplace_back();
  try {
    run_loop({.task = task,
              .model = model,
              .optimizer = optimizer,
              .trainers = Group(),
              .config = config,
              .optim = optim,
              .data = data,
              .max_bad_share = 1,
              .device = torch::kMeta,
              .manifest_extra = {},
              .trainer_ranks = {{0, "n1"}},
              .producer_ranks = {{0, "n1"}}},
             {});
    ADD_FAILURE() << "a checkpoint cannot hold what has no memory";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("copy out of meta")) << "the save at the end";
  }
  EXPECT_EQ(optimizer.updates(), steps);
  if (std::ssize(task.each_step) != steps + 1) return {};
  return {task.each_step.begin() + 2, task.each_step.end() - 1};
}

class DeviceStep : public testing::Test {
 protected:
  DeviceStep() {
    c10::SetAllocator(c10::DeviceType::Meta, &memory, /*priority=*/1);
    nn::use_fused_kernels(nn::FusedKernels::everywhere);
    at::set_num_threads(1);
  }
  ~DeviceStep() override {
    nn::use_fused_kernels(nn::FusedKernels::by_device);
    at::removeCallback(handle_);
  }
  const at::CallbackHandle handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(look_at, look_after).needsInputs(true));
};

// docs/architecture.md, "Where the host waits for a GPU".
TEST_F(DeviceStep, TheHostReadsLossAndGradientNormAndNothingElse) {
  for (const auto dtype : {torch::kFloat32, torch::kBFloat16})
    for (const auto& objective : {ObjectiveConfig{.caption_dropout = 0.1},
                                  ObjectiveConfig{.caption_dropout = 0, .snr_gamma = 5, .noise_offset = 0.1}})
      for (const int micro : {6, 2}) {
        const int turns = share / micro;
        // Moments and text embeddings; what the host knows about each sample.
        // All gradients of the small net are added together; those in bfloat16 are converted first, but for the first.
        const int added = dtype == torch::kFloat32 ? turns : 2 * turns - 1;
        const Counts usual{{"naps", 1},
                           {"numbers read", 2},
                           {"operations for several gradients", added},
                           {"streams ordered", 2 * turns},
                           {"copies beside arithmetic", 2 * turns},
                           {"copies between arithmetic", turns}};
        for (const bool recomputes : {false, true})
          EXPECT_EQ(counts_of_steps(objective, micro, dtype, recomputes), std::vector<Counts>(steps - 2, usual))
              << "micro-batches of " << micro << (recomputes ? ", recomputed" : "");
      }
  EXPECT_THAT(nn::norm_kernels(), testing::EndsWith(" by our kernels, 0 by LibTorch's")) << "of a whole U-Net";
}

}  // namespace
}  // namespace millrace
