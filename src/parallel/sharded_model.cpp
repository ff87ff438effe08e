#include "millrace/parallel/sharded_model.h"

#include <fmt/format.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <cmath>
#include <set>
#include <utility>

#include "gradient_buckets.h"
#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "millrace/nn/device.h"
#include "millrace/nn/fused.h"
#include "millrace/parallel/storage_order.h"
#include "parameter_buckets.h"
#include "tensor_digest.h"

namespace millrace {
namespace {

// Elements of weights whose kernel is larger than 1x1 lie in the order that the module chose for them.
bool is_channels_last(const torch::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() && tensor.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

std::vector<ParameterSpec> specs_of(const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                                    const std::vector<std::string>& order) {
  std::vector<ParameterSpec> specs;
  std::set<std::string> seen;
  for (const auto& name : order) {
    const auto* tensor = parameters.find(name);
    ensure(tensor != nullptr, fmt::format("the order names a parameter that the module lacks: {}", name));
    ensure(seen.insert(name).second, fmt::format("parameter twice in the order: {}", name));
    specs.push_back({name, tensor->sizes().vec(), is_channels_last(*tensor)});
  }
  for (const auto& item : parameters)
    ensure(seen.contains(item.key()), fmt::format("parameter not in the order: {}", item.key()));
  return specs;
}

// In double precision; (). LibTorch converts what it is to sum beforehand, so that goes in pieces: on a CPU they stay
// in the cache, on a GPU they are large enough for it.
torch::Tensor square_sum(const torch::Tensor& flat) {
  const std::int64_t at_once = flat.is_cpu() ? 1 << 17 : 1 << 24;
  auto sum = torch::zeros({}, flat.options().dtype(torch::kFloat64));
  for (const auto& piece : flat.split(at_once))
    sum += at::linalg_vector_norm(piece, 2, {}, false, torch::kFloat64).square();
  return sum;
}

}  // namespace

MakeCollectives collectives_on(torch::Device device) {
  if (!device.is_cuda()) return make_host_collectives;
  return [device](const Group& group) { return make_device_collectives(group, device.index(), compute_stream); };
}

std::vector<std::string> parameter_names(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

struct ShardedModel::TakeGradient final : torch::autograd::PostAccumulateGradHook {
  TakeGradient(GradientBuckets& gradients, int parameter) : gradients(gradients), parameter(parameter) {}
  void operator()(const torch::autograd::Variable& variable) override {
    const torch::NoGradGuard no_grad;
    gradients.take(parameter, std::exchange(variable.mutable_grad(), {}));
  }
  GradientBuckets& gradients;
  int parameter;
};

ShardedModel::ShardedModel(torch::nn::Module& module, const std::vector<std::string>& order, const ShardPlan& plan,
                           const ParallelConfig& config, const Group& trainers, Start start,
                           const MakeCollectives& make_collectives)
    : module_(module), trainers_(trainers.duplicate()) {
  const auto parameters = module.named_parameters();
  const auto device = parameters.begin()->value().device();
  layout_ = plan_flat_layout(specs_of(parameters, order), config.bucket_elements(), plan.shards);
  groups_ =
      std::make_unique<ShardGroups>(plan, trainers_, make_collectives ? make_collectives : collectives_on(device));
  layers_wait_ = plan.splits_parameters() || (groups_->transfers_later() && nn::asks_for_parameters(module));
  if (layers_wait_) nn::set_parameter_source(module, this);
  gradients_ =
      std::make_unique<GradientBuckets>(layout_, *groups_, config.reduce_dtype.value == ReduceDtype::bfloat16, device);
  parameters_ = std::make_unique<ParameterBuckets>(*groups_);
  // Bucket by bucket, so that there never is a second copy of the whole.
  for (int b = 0; b < buckets(); ++b) {
    adopt_bucket(b, parameters);
    if (start == Start::of_rank_0) share_weights_of_rank_0(parameters_->bucket(b));
    parameters_->keep(b);
  }
}

ShardedModel::~ShardedModel() {
  if (layers_wait_) nn::set_parameter_source(module_, nullptr);
  for (const auto& parameter : adopted_) torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  // The gathers behind the last update are under way: what is computed next may be given their memory.
  try {
    groups_->join(groups_->mark());
  } catch (...) {
    // The GPU has failed, which whoever uses it next will be told.
  }
}

const ShardPlan& ShardedModel::plan() const {
  return groups_->plan;
}

int ShardedModel::shard() const {
  return groups_->shard;
}

torch::Tensor ShardedModel::parameter_shard(int bucket) const {
  return parameters_->shard(bucket);
}

torch::Tensor ShardedModel::gradient_shard(int bucket) const {
  return gradients_->shard(bucket);
}

// The module's parameters become views, and their gradients go to the buckets.
void ShardedModel::adopt_bucket(int b, const torch::OrderedDict<std::string, torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  const auto options = parameters.begin()->value().options().requires_grad(false);
  const auto& bucket = parameters_->add(layout_.buckets[b].elements, options);
  for (const auto& placement : layout_.buckets[b].placements) {
    const auto& spec = layout_.parameters[placement.parameter];
    torch::Tensor parameter = parameters[spec.name];
    ensure(parameter.dtype() == options.dtype() && parameter.device() == options.device(),
           fmt::format("parameter of another dtype or device: {}", spec.name));
    const auto view = view_into(bucket, placement, spec);
    view.copy_(parameter);
    parameter.set_data(view);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                   std::make_unique<TakeGradient>(*gradients_, placement.parameter));
    bucket_of_[parameter.unsafeGetTensorImpl()] = b;
    adopted_.push_back(parameter);
  }
}

void ShardedModel::share_weights_of_rank_0(const torch::Tensor& bucket) const {
  if (trainers_.size() == 1) return;
  const auto host = bucket.cpu();  // the same memory where it is the host's
  trainers_.broadcast({static_cast<std::byte*>(host.data_ptr()), host.nbytes()});
  if (!bucket.is_cpu()) bucket.copy_(host);
  check_arrival(trainers_, std::span(&bucket, 1));
}

std::string ShardedModel::digest() {
  std::string digests;
  for (int b = 0; b < buckets(); ++b) {
    parameters_->provide(b);
    digests += digest_of(std::span(&parameters_->bucket(b), 1));
  }
  return digests;
}

// A module moved to another dtype or device would train weights that nobody reads.
void ShardedModel::check_parameters_in_place() const {
  for (int b = 0; b < buckets(); ++b)
    for (const auto& placement : layout_.buckets[b].placements)
      ensure(adopted_[placement.parameter].is_alias_of(parameters_->bucket(b)),
             "a parameter was moved out of its bucket");
}

void ShardedModel::begin_gradients(int backwards) {
  check_parameters_in_place();
  gradients_->begin(backwards);
}

void ShardedModel::repeat_gradients() {
  gradients_->repeat();
}

bool ShardedModel::has_all_gradients() const {
  return gradients_->is_level();
}

void ShardedModel::finish_gradients(const std::function<void()>& meanwhile) {
  const torch::NoGradGuard no_grad;
  gradients_->finish(meanwhile);
}

torch::Tensor ShardedModel::gradient_square_sum() const {
  const torch::NoGradGuard no_grad;
  if (plan().replica_of(trainers_.rank()) != 0) return torch::zeros({}, torch::kFloat64);
  const kernels::OpScope scope("millrace::gradient_square_sum");
  if (nn::fused_kernels_on(gradients_->shard(0).device())) {
    const auto sums = torch::empty({buckets()}, gradients_->shard(0).options().dtype(torch::kFloat64));
    for (int b = 0; b < buckets(); ++b) kernels::square_sum(gradients_->shard(b), sums.narrow(0, b, 1));
    return sums.sum();
  }
  auto sum = torch::zeros({}, gradients_->shard(0).options().dtype(torch::kFloat64));
  for (const auto& shard : gradients_->shards()) sum += square_sum(shard);
  return sum;
}

double ShardedModel::gradient_norm() const {
  auto sum = gradient_square_sum().item<double>();
  const kernels::OpScope scope("millrace::all_reduce_gradient_norm");
  trainers_.all_reduce_sum(std::span(&sum, 1));
  return std::sqrt(sum);
}

void ShardedModel::share_with_replicas(const torch::Tensor& shard, int from_replica) const {
  groups_->share_with_replicas(shard, from_replica);
}

void ShardedModel::finish_gathers() {
  parameters_->finish_gathers();
}

void ShardedModel::publish_parameters() {
  parameters_->publish();
  if (!layers_wait_) finish_gathers();
}

void ShardedModel::provide(const torch::Tensor& parameter) {
  const auto bucket = bucket_of_.find(parameter.unsafeGetTensorImpl());
  ensure(bucket != bucket_of_.end(), "a layer asks for a parameter that is not the module's");
  parameters_->provide(bucket->second);
}

}  // namespace millrace
