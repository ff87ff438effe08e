// What the ranks of a training move, when, and in which order.
#include <fmt/ranges.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <functional>
#include <random>
#include <utility>

#include "sharded_training.h"

namespace millrace {
namespace {

// What its rank does, one line per operation.
class RecordingCollectives final : public Collectives {
 public:
  RecordingCollectives(const Group& group, std::vector<std::string>& log)
      : collectives_(make_host_collectives(group)), log_(log) {}
  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  void all_reduce_sum(Memory data) override {
    write("all_reduce", data);
    collectives_->all_reduce_sum(data);
  }
  void reduce_scatter_sum(Memory data, Memory own) override {
    write("reduce_scatter", data);
    collectives_->reduce_scatter_sum(data, own);
  }
  void all_gather(Memory own, Memory all) override {
    write("all_gather", all);
    collectives_->all_gather(own, all);
  }
  void broadcast(Memory data, int root) override {
    write("broadcast", data);
    collectives_->broadcast(data, root);
  }

 private:
  void write(const char* what, Memory data) {
    log_.push_back(fmt::format("{} of {} elements of kind {}", what, data.count, static_cast<int>(data.type)));
  }
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::string>& log_;
};

struct Recorded {
  explicit Recorded(Settings settings) : training(with_log(std::move(settings), log)) {}
  static Settings with_log(Settings settings, std::vector<std::string>& log) {
    settings.make_collectives = [&log](const Group& group) {
      return std::make_unique<RecordingCollectives>(group, log);
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
    training.model.finish_gradients(1.0);
    EXPECT_EQ(reductions(), after_last) << to_string(strategy);
    const int operations = test_world().size() == 1                                     ? 0
                           : strategy == Strategy::hybrid && training.plan.replicas > 1 ? 2
                                                                                        : 1;
    const int rounds = strategy == Strategy::full_shard ? 2 : 1;
    EXPECT_EQ(after_last, operations * rounds * training.model.buckets());
    EXPECT_EQ(after_first, strategy == Strategy::full_shard ? after_last / 2 : 0);
  }
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
    training.model.finish_gradients(1.0);
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
                     test_world().group(), ShardedModel::Start::of_rank_0,
                     [&](const Group& group) { return std::make_unique<RecordingCollectives>(group, log); });
  const auto input = torch::ones({1, 3});
  const bool swapped = test_world().rank() % 2 == 1;
  const auto first = (swapped ? twins.b : twins.a)(input).sum(), second = (swapped ? twins.a : twins.b)(input).sum();
  model.begin_gradients(1);
  (first + 2 * second).backward();
  model.finish_gradients(1.0);
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
    Recorded recorded({.strategy = strategy, .bucket_mb = bucket_mb});
    auto& [log, training] = recorded;
    for (int step = 1; step <= 3; ++step) {
      const int turns = static_cast<int>(1 + random() % 3);
      const int own = training.plan.splits_parameters() ? turns : turns + test_world().rank() % 2;
      const auto batch = batch_of_step(step);
      training.model.begin_gradients(own);
      for (int turn = 0; turn < own; ++turn) loss_of(training.net, batch, turn, turn + 1).backward();
      training.model.finish_gradients(1.0);
      training.optimizer.step(training.optim.lr);
      if (step == 2) training.optimizer.with_ema([&] { loss_of(training.net, batch, 0, 1); });
    }
    const auto logs = test_world().group().all_gather_strings(fmt::format("{}", fmt::join(log, "\n")));
    for (const auto& other : logs) EXPECT_EQ(other, logs[0]) << "seed " << seed;
  }
}

// Transfers that take as long as they may: each happens when somebody joins it, or one behind it. What is read too
// early is not there yet, and what is overwritten too early travels wrong. Host memory in the part of a GPU's.
class LateCollectives final : public Collectives {
 public:
  // Of all communicators of a rank, in one order.
  struct Order {
    std::vector<std::function<void()>> transfers;
    std::size_t done = 0;
    void run_until(Mark mark) {
      while (done < mark) std::exchange(transfers.at(done++), {})();
    }
  };

  LateCollectives(const Group& group, Order& order) : collectives_(make_host_collectives(group)), order_(order) {}
  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  void all_reduce_sum(Memory data) override {
    later([this, data] { collectives_->all_reduce_sum(data); });
  }
  void reduce_scatter_sum(Memory data, Memory own) override {
    later([this, data, own] { collectives_->reduce_scatter_sum(data, own); });
  }
  // As some algorithms of NCCL do, also the own part is written, as it was when the transfer began.
  void all_gather(Memory own, Memory all) override {
    std::vector<std::byte> copy(own.begin(), own.begin() + own.bytes());
    later([this, own, all, copy = std::move(copy)] {
      std::ranges::copy(copy, own.begin());
      collectives_->all_gather(own, all);
    });
  }
  void broadcast(Memory data, int root) override {
    later([this, data, root] { collectives_->broadcast(data, root); });
  }
  bool is_done_at_once() const override { return false; }
  Mark mark() override { return order_.transfers.size(); }
  void join(Mark mark) override { order_.run_until(mark); }
  void wait() override { order_.run_until(order_.transfers.size()); }

 private:
  void later(std::function<void()> transfer) { order_.transfers.push_back(std::move(transfer)); }
  std::unique_ptr<Collectives> collectives_;
  Order& order_;
};

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
        settings.make_collectives = [&](const Group& group) { return std::make_unique<LateCollectives>(group, order); };
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
    Training training({.strategy = strategy, .bucket_mb = 1e-6, .make_collectives = [&](const Group& group) {
                         return std::make_unique<LateCollectives>(group, order);
                       }});
    const auto under_way = [&] { return order.transfers.size() - order.done; };
    const auto before = order.done;
    training.model.begin_gradients(1);
    loss_of(training.net, batch_of_step(1), 0, 1).backward();
    EXPECT_EQ(order.done, before) << to_string(strategy) << ": nothing was waited for";
    EXPECT_GE(under_way(), static_cast<std::size_t>(training.model.buckets())) << to_string(strategy);
    training.model.finish_gradients(1.0);
    training.optimizer.step(1e-3);
    if (training.plan.shards == 1) continue;
    EXPECT_EQ(under_way(), static_cast<std::size_t>(training.model.buckets())) << to_string(strategy);
    (void)training.net->conv(batch_of_step(1).image);
    EXPECT_EQ(under_way(), static_cast<std::size_t>(training.model.buckets()) - 2)
        << "the weight and bias of the first";
  }
}

// Of full_shard: whatever was done, at most two buckets are whole, and in a run of many small ones almost nothing is.
TEST(FullShard, KeepsTwoBucketsAtMost) {
  if (test_world().size() == 1) GTEST_SKIP() << "nothing is split on one rank";
  Training training({.strategy = Strategy::full_shard, .bucket_mb = 1e-6});
  ASSERT_EQ(training.model.buckets(), 6);
  const auto whole = [&] {
    int count = 0;
    for (const auto& parameter : training.net->parameters()) count += parameter.storage().nbytes() > 0;
    return count;
  };
  EXPECT_EQ(whole(), 0);
  const auto loss = loss_of(training.net, batch_of_step(1), 0, 1);
  EXPECT_EQ(whole(), 2);
  training.model.begin_gradients(1);
  loss.backward();
  EXPECT_EQ(whole(), 2);
  training.model.finish_gradients(1.0);
  training.optimizer.step(1e-3);
  EXPECT_EQ(whole(), 0);
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
