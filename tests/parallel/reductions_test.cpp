// What the ranks of a training move, when, and in which order.
#include <fmt/ranges.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <random>

#include "late_collectives.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/gradient_checkpoint.h"
#include "sharded_training.h"

namespace millrace {
namespace {

// What its rank does, one line per operation.
class RecordingCollectives final : public Collectives {
 public:
  RecordingCollectives(std::unique_ptr<Collectives> collectives, std::vector<std::string>& log)
      : collectives_(std::move(collectives)), log_(log) {}
  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  void all_reduce_sum(Buffer data) override {
    write("all_reduce", data);
    collectives_->all_reduce_sum(data);
  }
  void reduce_scatter_sum(Buffer data, Buffer own) override {
    write("reduce_scatter", data);
    collectives_->reduce_scatter_sum(data, own);
  }
  void all_gather(Buffer own, Buffer all) override {
    write("all_gather", all);
    collectives_->all_gather(own, all);
  }
  void broadcast(Buffer data, int root) override {
    write("broadcast", data);
    collectives_->broadcast(data, root);
  }
  void together(const std::function<void()>& calls) override {
    log_.push_back("together");
    collectives_->together(calls);
  }
  bool is_done_at_once() const override { return collectives_->is_done_at_once(); }
  Mark mark() override { return collectives_->mark(); }
  void join(Mark mark) override { collectives_->join(mark); }
  void wait(const std::function<void()>& meanwhile) override { collectives_->wait(meanwhile); }

 private:
  void write(const char* what, Buffer data) {
    log_.push_back(fmt::format("{} of {} elements of kind {}", what, data.count, static_cast<int>(data.type)));
  }
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::string>& log_;
};

struct Recorded {
  explicit Recorded(Settings settings) : training(with_log(std::move(settings), log)) {}
  static Settings with_log(Settings settings, std::vector<std::string>& log) {
    settings.make_collectives = [&log, make = settings.make_collectives](const Group& group) {
      return std::make_unique<RecordingCollectives>(make ? make(group) : make_host_collectives(group), log);
    };
    return settings;
  }
  std::vector<std::string> log;
  Training training;
};

std::size_t reductions_in(const std::vector<std::string>& log) {
  const auto reduces = [](const std::string& line) { return line.find("reduce") != line.npos; };
  return static_cast<std::size_t>(std::ranges::count_if(log, reduces));
}

TEST(Reductions, AreStartedByTheLastBackward) {
  for (const auto strategy : strategies) {
    if (strategy != Strategy::ddp && test_world().size() == 1) continue;
    Recorded recorded({.strategy = strategy});
    auto& [log, training] = recorded;
    const auto reductions = [&] { return static_cast<int>(reductions_in(log)); };
    const auto batch = batch_of_step(1);
    training.model.begin_gradients(2);
    loss_of(training.net, batch, 0, 1).backward();
    const auto after_first = reductions();
    loss_of(training.net, batch, 1, 2).backward();
    const auto after_last = reductions();
    training.model.finish_gradients();
    EXPECT_EQ(reductions(), after_last) << to_string(strategy);
    const int operations = test_world().size() == 1                                     ? 0
                           : strategy == Strategy::hybrid && training.plan.replicas > 1 ? 2
                                                                                        : 1;
    const int rounds = strategy == Strategy::full_shard ? 2 : 1;
    EXPECT_EQ(after_last, operations * rounds * training.model.buckets());
    EXPECT_EQ(after_first, strategy == Strategy::full_shard ? after_last / 2 : 0);
  }
}

// The layers that come first wait for little, and few starts hold the host up.
TEST(Gathers, StartTogetherButForTheFirst) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is gathered on one rank";
  Recorded recorded({.strategy = Strategy::shard_grad_op, .bucket_mb = 1e-6});
  auto& [log, training] = recorded;
  const auto before = log.size();
  training.model.publish_parameters();
  std::string calls;
  for (auto line = log.begin() + static_cast<std::ptrdiff_t>(before); line != log.end(); ++line) calls += line->front();
  ASSERT_EQ(training.model.buckets(), 6);
  EXPECT_EQ(calls,
            "aa"
            "taa"
            "taa");  // all_gather, together
}

TEST(Reductions, RunWhileBackwardIsUnderWay) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is reduced on one rank";
  for (const auto strategy : strategies) {
    Recorded recorded({.strategy = strategy, .bucket_mb = 1e-6});
    auto& [log, training] = recorded;
    const auto image = training.net->conv(batch_of_step(1).image);
    std::size_t before = 0;
    image.register_hook([&](const torch::Tensor&) { before = reductions_in(log); });
    training.model.begin_gradients(1);
    training.net->out(torch::silu(training.net->norm(image)).flatten(1)).sum().backward();
    EXPECT_GE(before, 2u) << to_string(strategy);  // out.bias and out.weight
    training.model.finish_gradients();
    EXPECT_GE(reductions_in(log), before + 2);
  }
}

// Gradients that come in another order on every second rank are reduced in one.
TEST(Reductions, DoNotFollowTheOrderOfGradients) {
  struct Twins : torch::nn::Module {
    Twins() : a(3, 5), b(3, 5) {
      register_module("a", a);
      register_module("b", b);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : parameters()) parameter.fill_(1);
    }
    nn::Linear a, b;
  } twins;
  std::vector<std::string> log;
  const ParallelConfig parallel{.strategy = Strategy::ddp, .bucket_mb = 1e-6};
  ShardedModel model(twins, parameter_names(twins), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group(), ShardedModel::Start::of_rank_0, [&](const Group& group) {
                       return std::make_unique<RecordingCollectives>(make_host_collectives(group), log);
                     });
  const auto input = torch::ones({1, 3});
  const bool swapped = test_world().rank() % 2 == 1;
  const auto first = (swapped ? twins.b : twins.a)(input).sum(), second = (swapped ? twins.a : twins.b)(input).sum();
  model.begin_gradients(1);
  (first + 2 * second).backward();
  model.finish_gradients();
  const auto logs = test_world().group().all_gather_strings(fmt::format("{}", fmt::join(log, "\n")));
  for (const auto& other : logs) EXPECT_EQ(other, logs[0]);
  EXPECT_EQ(reductions_in(log), test_world().size() == 1 ? 0u : 4u);
}

// Also of ranks that do not take the same number of micro-batches, over buckets of any size.
TEST(Reductions, AreTheSameOnAllRanks) {
  for (unsigned seed = 1; seed <= 24; ++seed) {
    std::mt19937 random(seed);  // the same on all ranks
    const auto strategy = strategies[random() % 4];
    const double bucket_mb = std::pow(10.0, -6 + static_cast<int>(random() % 5));
    LateCollectives::Order order;
    const auto make_late = LateCollectives::maker(order);
    Recorded recorded({.strategy = strategy,
                       .bucket_mb = bucket_mb,
                       .make_collectives = random() % 2 == 0 ? make_late : make_host_collectives});
    auto& [log, training] = recorded;
    for (int step = 1; step <= 3; ++step) {
      const int turns = static_cast<int>(1 + random() % 3);
      const int own = training.plan.splits_parameters() ? turns : turns + test_world().rank() % 2;
      const auto batch = batch_of_step(step);
      training.model.begin_gradients(own);
      for (int turn = 0; turn < own; ++turn) loss_of(training.net, batch, turn, turn + 1).backward();
      training.model.finish_gradients();
      training.optimizer.step(training.optim.lr);
      if (step == 2) training.optimizer.with_ema([&] { loss_of(training.net, batch, 0, 1); });
    }
    const auto logs = test_world().group().all_gather_strings(fmt::format("{}", fmt::join(log, "\n")));
    for (const auto& other : logs) EXPECT_EQ(other, logs[0]) << "seed " << seed;
  }
}

// Losses of some steps, with the EMA's between them, and the weights at the end.
std::pair<std::vector<double>, torch::Tensor> losses_and_weights(const Settings& settings) {
  Training training(settings);
  std::vector<double> losses;
  const auto add_loss = [&](int step) {
    const torch::NoGradGuard no_grad;
    losses.push_back(loss_of(training.net, batch_of_step(step), 0, global_batch).item<double>());
  };
  for (int step = 1; step <= 4; ++step) {
    training.step(step);
    if (step % 2 == 0) training.optimizer.with_ema([&] { add_loss(step); });
    add_loss(step);
    if (step == 3) training.optimizer.with_ema([] {});  // right behind an update, and nobody looks
  }
  return {losses, training.weights()};
}

TEST(Transfers, MayTakeAsLongAsNobodyJoinsThem) {
  for (const auto strategy : strategies) {
    for (const auto dtype : {ReduceDtype::float32, ReduceDtype::bfloat16}) {
      for (const double bucket_mb : {1e-6, 0.001, 1.0}) {
        Settings settings{.strategy = strategy, .bucket_mb = bucket_mb, .reduce_dtype = {dtype}};
        const auto [losses, weights] = losses_and_weights(settings);
        LateCollectives::Order order;
        settings.make_collectives = LateCollectives::maker(order);
        const auto [late_losses, late_weights] = losses_and_weights(settings);
        EXPECT_EQ(late_losses, losses) << to_string(strategy) << ", buckets of " << bucket_mb << " MB";
        EXPECT_TRUE(torch::equal(late_weights, weights)) << to_string(strategy);
        EXPECT_EQ(order.transfers.empty(), test_world().size() == 1);
      }
    }
  }
}

// Backward goes on while its first gradients travel, and a layer waits for its own weights alone.
TEST(Transfers, OverlapWithArithmetic) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing travels on one rank";
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op, Strategy::hybrid}) {
    LateCollectives::Order order;
    Training training({.strategy = strategy, .bucket_mb = 1e-6, .make_collectives = LateCollectives::maker(order)});
    const auto under_way = [&] { return order.transfers.size() - order.done; };
    const auto before = order.done;
    training.model.begin_gradients(1);
    loss_of(training.net, batch_of_step(1), 0, 1).backward();
    EXPECT_EQ(order.done, before) << to_string(strategy) << ": nothing was waited for";
    EXPECT_GE(under_way(), static_cast<std::size_t>(training.model.buckets())) << to_string(strategy);
    training.model.finish_gradients();
    training.optimizer.step(1e-3);
    if (training.plan.shards == 1) continue;
    EXPECT_EQ(under_way(), static_cast<std::size_t>(training.model.buckets())) << to_string(strategy);
    (void)training.net->conv(batch_of_step(1).image);
    EXPECT_EQ(under_way(), static_cast<std::size_t>(training.model.buckets()) - 2)
        << "the weight and bias of the first";
  }
}

// Buckets of one parameter each that have memory.
int whole_buckets(const Training& training) {
  return static_cast<int>(std::ranges::count_if(
      training.net->parameters(), [](const auto& parameter) { return parameter.storage().nbytes() > 0; }));
}

// Of full_shard: whatever was done, at most two buckets are whole, and in a run of many small ones almost nothing is.
TEST(FullShard, KeepsTwoBucketsAtMost) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  Training training({.strategy = Strategy::full_shard, .bucket_mb = 1e-6});
  ASSERT_EQ(training.model.buckets(), 6);
  EXPECT_EQ(whole_buckets(training), 0);
  const auto loss = loss_of(training.net, batch_of_step(1), 0, 1);
  EXPECT_EQ(whole_buckets(training), 2);
  training.model.begin_gradients(1);
  loss.backward();
  EXPECT_EQ(whole_buckets(training), 2);
  training.model.finish_gradients();
  training.optimizer.step(1e-3);
  EXPECT_EQ(whole_buckets(training), 0);
}

// While a layer computes, the bucket that the next one will ask for is on its way, and in backward the sum of the
// gradients made before: one of each beside those that are in use.
TEST(FullShard, LooksOneBucketAhead) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  LateCollectives::Order order;
  Training training(
      {.strategy = Strategy::full_shard, .bucket_mb = 1e-6, .make_collectives = LateCollectives::maker(order)});
  const auto under_way = [&] { return order.transfers.size() - order.done; };
  auto& net = training.net;
  const auto image = net->conv(batch_of_step(1).image);
  EXPECT_EQ(under_way(), 1u) << "norm.weight";
  EXPECT_EQ(whole_buckets(training), 3);
  std::size_t in_backward = 0;
  image.register_hook([&](const torch::Tensor&) { in_backward = under_way(); });
  const auto loss = net->out(torch::silu(net->norm(image)).flatten(1)).square().sum();
  EXPECT_EQ(under_way(), 0u) << "nothing comes after out.bias";
  training.model.begin_gradients(1);
  loss.backward();
  EXPECT_EQ(in_backward, 1u) << "the sum for norm.bias or norm.weight";
  EXPECT_LE(whole_buckets(training), 3);
  training.model.finish_gradients();
  EXPECT_EQ(under_way(), 0u);
  training.optimizer.step(1e-3);
  EXPECT_EQ(whole_buckets(training), 0);
  (void)net->conv(batch_of_step(1).image);
  EXPECT_EQ(under_way(), 1u);
  training.optimizer.step(1e-3);
  EXPECT_EQ(under_way(), 0u) << "what is on its way is older than the update";
  EXPECT_EQ(whole_buckets(training), 0);
}

// Layers of random weights, the same on every rank.
struct RandomLayers : torch::nn::Module {
  RandomLayers(int count, std::int64_t in, std::int64_t out) {
    torch::manual_seed(1);
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(std::to_string(i), nn::Linear(in, out)));
      const torch::NoGradGuard no_grad;
      for (auto& parameter : layers.back()->parameters()) parameter.normal_(0, 0.5);
    }
  }
  std::vector<nn::Linear> layers;
};

// In blocks that are computed anew for their backward, so that buckets are asked for up and down.
struct Checkpointed : RandomLayers {
  Checkpointed() : RandomLayers(6, 7, 7) {}
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t first = 0; first < layers.size(); first += 2) {
      const auto block = [this, first](const nn::TensorList& in) {
        return nn::TensorList{torch::tanh(layers[first + 1](torch::tanh(layers[first](in[0]))))};
      };
      x = nn::checkpoint(block, {x}, /*replay_random=*/false)[0];
    }
    return x;
  }
};

// All gradients of this rank's shard, after two micro-batches.
std::vector<torch::Tensor> checkpointed_gradients(double bucket_mb, ReduceDtype dtype, const MakeCollectives& make) {
  const auto net = std::make_shared<Checkpointed>();
  const ParallelConfig parallel{.strategy = Strategy::full_shard, .reduce_dtype = {dtype}, .bucket_mb = bucket_mb};
  ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group(), ShardedModel::Start::of_rank_0, make);
  model.begin_gradients(2);
  for (int turn = 0; turn < 2; ++turn) {
    torch::manual_seed(10 * turn + test_world().rank());
    net->forward(torch::randn({5, 7}).set_requires_grad(true)).square().sum().backward();
  }
  model.finish_gradients();
  std::vector<torch::Tensor> gradients;
  for (int b = 0; b < model.buckets(); ++b) gradients.push_back(model.gradient_shard(b).clone());
  return gradients;
}

TEST(FullShard, LooksAheadThroughBlocksThatAreComputedAnew) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  for (const auto dtype : {ReduceDtype::float32, ReduceDtype::bfloat16}) {
    for (const double bucket_mb : {1e-6, 2e-4, 4e-4, 1.0}) {  // a parameter, a layer, a block, all
      LateCollectives::Order order;
      const auto expected = checkpointed_gradients(bucket_mb, dtype, make_host_collectives);
      const auto late = checkpointed_gradients(bucket_mb, dtype, LateCollectives::maker(order));
      ASSERT_EQ(late.size(), expected.size());
      for (std::size_t b = 0; b < late.size(); ++b)
        EXPECT_TRUE(torch::equal(late[b], expected[b])) << "bucket " << b << " of " << bucket_mb << " MB";
    }
  }
}

// Our GEGLU adds the layers' bias, and reads it again in backward.
struct Widening : RandomLayers {
  Widening() : RandomLayers(4, 6, 12) {}
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = layer->geglu(x);
    return x;
  }
};

TEST(FullShard, HasTheBiasOfAGegluInBackward) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  nn::use_fused_kernels(nn::FusedKernels::everywhere);
  const auto gradients_of = [](Strategy strategy) {
    const auto net = std::make_shared<Widening>();
    const ParallelConfig parallel{.strategy = strategy, .bucket_mb = 1e-6};
    ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                       test_world().group());
    model.begin_gradients(1);
    torch::manual_seed(test_world().rank());
    net->forward(torch::randn({5, 6})).square().sum().backward();
    model.finish_gradients();
    std::vector<torch::Tensor> gradients;
    for (int b = 0; b < model.buckets(); ++b) gradients.push_back(model.gradient_shard(b).clone());
    return gradients;
  };
  const auto expected = gradients_of(Strategy::shard_grad_op), split = gradients_of(Strategy::full_shard);
  nn::use_fused_kernels(nn::FusedKernels::by_device);
  ASSERT_EQ(split.size(), expected.size());
  for (std::size_t b = 0; b < split.size(); ++b) EXPECT_TRUE(torch::equal(split[b], expected[b])) << "bucket " << b;
}

// Layers of a U-Net that let others add their bias, add another layer's output, or share a matrix product, where their
// parameters stay.
struct Sharing : torch::nn::Module {
  nn::GroupNorm norm1{4, 8, 1e-5}, norm2{4, 12, 1e-5};
  nn::Conv2d conv1{8, 12, 3, 1, 1}, conv2{12, 12, 3, 1, 1}, shortcut{8, 12, 1};
  nn::LayerNorm token_norm{12, 1e-5};
  nn::Linear to_k{12, 12, false}, to_v{12, 12, false}, to_out{12, 5};

  Sharing() {
    register_module("norm1", norm1);
    register_module("conv1", conv1);
    register_module("norm2", norm2);
    register_module("conv2", conv2);
    register_module("shortcut", shortcut);
    register_module("token_norm", token_norm);
    register_module("to_k", to_k);
    register_module("to_v", to_v);
    register_module("to_out", to_out);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.5);
    nn::place(*this, torch::kCPU, torch::kFloat32, /*channels_last=*/true);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto [in, hidden] = norm1->activated_beside(nn::Activation::silu, x);
    const auto [y, bias] = conv1->before_norm(hidden);
    hidden = norm2->activated(nn::Activation::silu, y, {}, bias);
    hidden = conv2->plus(hidden, [&, &in = in] { return shortcut(in); });
    const auto [tokens, normed] = token_norm->beside(hidden.permute({0, 2, 3, 1}).flatten(1, 2));
    const auto parts = nn::LinearImpl::together(normed, {to_k.get(), to_v.get()});
    return to_out(tokens + parts[0].sin() * parts[1]);
  }
};

// The loss and this rank's gradients.
std::vector<torch::Tensor> pass_of_sharing_layers(Strategy strategy, nn::FusedKernels kernels) {
  nn::use_fused_kernels(kernels);
  const auto net = std::make_shared<Sharing>();
  const ParallelConfig parallel{.strategy = strategy, .bucket_mb = 1e-6};
  ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group());
  model.begin_gradients(1);
  torch::manual_seed(test_world().rank());
  const auto x = torch::randn({2, 8, 5, 4}).contiguous(torch::MemoryFormat::ChannelsLast).requires_grad_();
  const auto loss = net->forward(x).square().mean();
  loss.backward();
  model.finish_gradients();
  std::vector<torch::Tensor> results = {loss.detach()};
  for (int b = 0; b < model.buckets(); ++b) results.push_back(model.gradient_shard(b).clone());
  nn::use_fused_kernels(nn::FusedKernels::by_device);
  return results;
}

TEST(FullShard, LayersThatShareWorkHaveTheirParametersWhenTheyNeedThem) {
  const auto expected = pass_of_sharing_layers(Strategy::shard_grad_op, nn::FusedKernels::nowhere);
  for (const auto strategy : {Strategy::shard_grad_op, Strategy::full_shard}) {
    const auto results = pass_of_sharing_layers(strategy, nn::FusedKernels::everywhere);
    ASSERT_EQ(results.size(), expected.size());
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(torch::allclose(results[i], expected[i], 1e-4, 1e-5)) << to_string(strategy) << ", tensor " << i;
  }
}

TEST(FullShard, AParameterOutsideOfALayerIsABug) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  torch::nn::Linear foreign(3, 3);
  const ParallelConfig parallel{.strategy = Strategy::full_shard};
  EXPECT_THROW(ShardedModel(*foreign, parameter_names(*foreign), plan_shards(parallel, test_world().hosts()), parallel,
                            test_world().group()),
               Error);
}

}  // namespace
}  // namespace millrace
