#include "millrace/parallel/sharded_model.h"

#include <cmath>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/hash.h"

namespace millrace {
namespace {

// Elements of weights whose kernel is larger than 1x1 lie in the order that the module chose for them.
bool is_channels_last(const torch::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() && tensor.is_contiguous(torch::MemoryFormat::ChannelsLast);
}

std::vector<ParameterSpec> specs_of(const torch::OrderedDict<std::string, torch::Tensor>& parameters,
                                    const std::vector<ParameterBlock>& blocks) {
  std::vector<ParameterSpec> specs;
  std::set<std::string> seen;
  for (int block = 0; block < static_cast<int>(blocks.size()); ++block) {
    for (const auto& name : blocks[block].parameters) {
      const auto* tensor = parameters.find(name);
      ensure(tensor != nullptr,
             fmt::format("block {} names a parameter that the module lacks: {}", blocks[block].name, name));
      ensure(seen.insert(name).second, fmt::format("parameter in two blocks: {}", name));
      specs.push_back({name, tensor->sizes().vec(), block, is_channels_last(*tensor)});
    }
  }
  for (const auto& item : parameters)
    ensure(seen.contains(item.key()), fmt::format("parameter in no block: {}", item.key()));
  return specs;
}

// The view of one parameter into its bucket, with the strides that the module's own tensor had.
torch::Tensor view_into(const torch::Tensor& bucket, std::int64_t offset, const ParameterSpec& spec) {
  return from_storage_order(bucket.narrow(0, offset, spec.elements()), spec.shape, spec.channels_last);
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

std::span<float> floats_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

// Runs `body` on the tensor's memory, or on a copy in host memory that is brought back: the collectives here move host
// memory.
template <class Body>
void on_host(const torch::Tensor& tensor, Body&& body) {
  if (tensor.is_cpu()) {
    body(tensor);
    return;
  }
  const auto copy = tensor.cpu();
  body(copy);
  torch::Tensor(tensor).copy_(copy);
}

std::string prefix_of(const std::string& name, int depth) {
  std::size_t end = 0;
  const std::size_t leaf = name.rfind('.');
  if (leaf == std::string::npos) return name;
  for (int level = 0; level < depth; ++level) {
    end = name.find('.', end == 0 ? 0 : end + 1);
    if (end >= leaf) return name.substr(0, leaf);
  }
  return name.substr(0, end);
}

}  // namespace

torch::Tensor in_storage_order(const torch::Tensor& logical, bool channels_last) {
  return (channels_last ? logical.permute({0, 2, 3, 1}) : logical).contiguous().flatten();
}

torch::Tensor from_storage_order(const torch::Tensor& flat, const std::vector<std::int64_t>& shape,
                                 bool channels_last) {
  if (!channels_last) return flat.view(shape);
  return flat.view({shape[0], shape[2], shape[3], shape[1]}).permute({0, 3, 1, 2});
}

std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> weights;
  for (const auto& item : module.named_parameters()) weights[item.key()] = item.value().detach();
  return weights;
}

std::vector<ParameterBlock> blocks_of(const torch::nn::Module& module, int depth) {
  std::vector<ParameterBlock> blocks;
  for (const auto& item : module.named_parameters()) {
    const auto prefix = prefix_of(item.key(), depth);
    if (blocks.empty() || blocks.back().name != prefix) blocks.push_back({prefix, {}});
    blocks.back().parameters.push_back(item.key());
  }
  return blocks;
}

std::vector<ParameterBlock> blocks_of(std::vector<std::vector<std::string>> names) {
  std::vector<ParameterBlock> blocks;
  for (auto& block : names) blocks.push_back({fmt::format("block {}", blocks.size()), std::move(block)});
  return blocks;
}

ShardedModel::ShardedModel(torch::nn::Module& module, const std::vector<ParameterBlock>& blocks, const ShardPlan& plan,
                           const ParallelConfig& config, const Group& trainers, Start start)
    : plan_(plan), trainers_(trainers.duplicate()) {
  ensure(plan.shards * plan.replicas == trainers.size(), "the shard plan is for another number of trainers");
  ensure(config.reduce_dtype.value != ReduceDtype::bfloat16, "gradients are not summed in bfloat16 between CPUs");
  const int trainer = trainers.rank();
  shard_collectives_ = make_host_collectives(trainers_.split(plan.replica_of(trainer), plan.shard_of(trainer)));
  replica_collectives_ = make_host_collectives(trainers_.split(plan.shard_of(trainer), plan.replica_of(trainer)));

  const auto parameters = module.named_parameters();
  const auto bucket_elements = static_cast<std::int64_t>(config.bucket_mb * 1e6 / sizeof(float));
  layout_ = plan_flat_layout(specs_of(parameters, blocks), bucket_elements, plan.shards);
  allocate(parameters.begin()->value().options());
  adopt(parameters);
  if (start == Start::of_rank_0) share_weights_of_rank_0();
}

void ShardedModel::allocate(torch::TensorOptions options) {
  options = options.requires_grad(false);
  for (int b = 0; b < buckets(); ++b) {
    parameters_.push_back(torch::zeros({layout_.buckets[b].elements}, options));
    gradients_.push_back(torch::zeros({layout_.buckets[b].elements}, options));
    const auto own = shard_of_bucket(gradients_[b]);
    gradient_shards_.push_back(own.scalar_type() == torch::kFloat32 ? own : torch::zeros_like(own, torch::kFloat32));
  }
}

// Parameters and gradients of the module become views.
void ShardedModel::adopt(const torch::OrderedDict<std::string, torch::Tensor>& parameters) {
  const torch::NoGradGuard no_grad;
  for (int b = 0; b < buckets(); ++b) {
    for (const auto& placement : layout_.buckets[b].placements) {
      const auto& spec = layout_.parameters[placement.parameter];
      torch::Tensor parameter = parameters[spec.name];
      ensure(parameter.dtype() == parameters_[b].dtype() && parameter.device() == parameters_[b].device(),
             fmt::format("parameter of another dtype or device: {}", spec.name));
      const auto view = view_into(parameters_[b], placement.offset, spec);
      view.copy_(parameter);
      parameter.set_data(view);
      const auto gradient = view_into(gradients_[b], placement.offset, spec);
      parameter.mutable_grad() = gradient;
      adopted_.push_back({parameter, gradient});
    }
  }
}

void ShardedModel::share_weights_of_rank_0() {
  for (const auto& bucket : parameters_) {
    on_host(bucket, [&](const torch::Tensor& host) { trainers_.broadcast(bytes_of(host)); });
  }
  compare_parameters();
}

void ShardedModel::compare_parameters() const {
  Hasher128 hasher;
  for (const auto& bucket : parameters_) {
    const auto host = bucket.cpu();
    hasher.update(host.data_ptr(), host.nbytes());
  }
  const auto digests = trainers_.all_gather_strings(hasher.digest().hex());
  for (int rank = 1; rank < trainers_.size(); ++rank) {
    if (digests[rank] == digests[0]) continue;
    throw Error(Exit::timeout, fmt::format("the weights of trainer {} differ from those of trainer 0", rank),
                "memory or network of one of the two nodes is damaged");
  }
}

torch::Tensor ShardedModel::shard_of_bucket(const torch::Tensor& bucket) const {
  const auto elements = bucket.numel() / plan_.shards;
  return bucket.narrow(0, shard() * elements, elements);
}

torch::Tensor ShardedModel::parameter_shard(int bucket) const {
  return shard_of_bucket(parameters_[bucket]);
}

void ShardedModel::zero_gradients() {
  for (auto& bucket : gradients_) bucket.zero_();
}

// An optimizer that sets gradients to none, or a module moved to another dtype, would leave the buckets silently empty.
void ShardedModel::check_gradients_in_place() const {
  for (const auto& [parameter, gradient] : adopted_) {
    ensure(parameter.grad().defined() && parameter.grad().is_alias_of(gradient),
           "a gradient was moved out of its bucket");
  }
}

void ShardedModel::reduce_gradients(double factor) {
  const torch::NoGradGuard no_grad;
  check_gradients_in_place();
  for (int b = 0; b < buckets(); ++b) {
    auto& own = gradient_shards_[b];
    if (plan_.shards == 1) {
      if (!own.is_alias_of(gradients_[b])) own.copy_(gradients_[b]);
    } else {
      const auto all = gradients_[b].to(torch::kCPU, torch::kFloat32);
      on_host(own, [&](const torch::Tensor& host) {
        shard_collectives_->reduce_scatter_sum(floats_of(all), floats_of(host));
      });
    }
    if (plan_.replicas > 1) {
      on_host(own, [&](const torch::Tensor& host) { replica_collectives_->all_reduce_sum(floats_of(host)); });
    }
    if (factor != 1.0) own.mul_(factor);
  }
}

double ShardedModel::gradient_square_sum() const {
  if (plan_.replica_of(trainers_.rank()) != 0) return 0;
  auto sum = torch::zeros({}, gradient_shards_[0].options().dtype(torch::kFloat64));
  for (const auto& shard : gradient_shards_)
    sum += at::linalg_vector_norm(shard, 2, {}, false, torch::kFloat64).square();
  return sum.item<double>();
}

double ShardedModel::gradient_norm() const {
  double sum = gradient_square_sum();
  trainers_.all_reduce_sum(std::span(&sum, 1));
  // All ranks must take the same decision by this number, to the last bit.
  trainers_.broadcast(std::as_writable_bytes(std::span(&sum, 1)));
  return std::sqrt(sum);
}

void ShardedModel::share_with_replicas(const torch::Tensor& shard, int from_replica) const {
  if (plan_.replicas == 1) return;
  on_host(shard, [&](const torch::Tensor& host) { replica_collectives_->broadcast(bytes_of(host), from_replica); });
}

void ShardedModel::gather_parameters() {
  if (plan_.shards == 1) return;
  for (const auto& bucket : parameters_) {
    on_host(bucket, [&](const torch::Tensor& host) {
      shard_collectives_->all_gather(bytes_of(shard_of_bucket(host)), bytes_of(host));
    });
  }
}

}  // namespace millrace
