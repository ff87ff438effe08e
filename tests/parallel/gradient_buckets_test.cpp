// Small gradients that are added together, as on GPUs: the bits of those that are added one by one.
#include <torch/utils.h>

#include "millrace/core/error.h"
#include "millrace/nn/fused.h"
#include "sharded_training.h"

namespace millrace {
namespace {

// Two layers with small gradients, and one whose weight's are added at once.
struct Uneven : torch::nn::Module {
  Uneven() : first(5, 520), wide(520, 512), last(512, 3) {
    register_module("first", first);
    register_module("wide", wide);
    register_module("last", last);
    torch::manual_seed(1);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) parameter.normal_(0, 0.1);
  }
  // Of some passes `first` is no part.
  torch::Tensor forward(const torch::Tensor& x, bool whole) {
    return last(torch::tanh(wide(whole ? first(x) : x.sum(1, true).expand({-1, 520}))));
  }
  nn::Linear first, wide, last;
};

// This rank's shards after two steps of three passes each.
std::vector<torch::Tensor> gradients_of(nn::FusedKernels where, const ParallelConfig& parallel, torch::Dtype dtype,
                                        bool leaves_out) {
  nn::use_fused_kernels(where);
  const auto net = std::make_shared<Uneven>();
  net->to(dtype);
  ShardedModel model(*net, parameter_names(*net), plan_shards(parallel, test_world().hosts()), parallel,
                     test_world().group());
  nn::use_fused_kernels(nn::FusedKernels::by_device);
  std::vector<torch::Tensor> gradients;
  for (int step = 0; step < 2; ++step) {
    model.begin_gradients(3);
    for (int pass = 0; pass < 3; ++pass) {
      torch::manual_seed(100 * step + 10 * pass + test_world().rank());
      const auto x = torch::randn({4, 5}).to(dtype).set_requires_grad(true);
      net->forward(x, !leaves_out || pass == step).square().sum().backward();
    }
    model.finish_gradients();
    for (int b = 0; b < model.buckets(); ++b) gradients.push_back(model.gradient_shard(b).clone());
  }
  return gradients;
}

TEST(GradientBuckets, SmallGradientsTogetherGiveTheSameBits) {
  using enum nn::FusedKernels;
  for (const auto strategy : strategies)
    for (const double bucket_mb : {0.01, 64.0})
      for (const auto dtype : {torch::kFloat32, torch::kBFloat16})
        for (const bool leaves_out : {false, true}) {
          const ParallelConfig parallel{.strategy = strategy, .bucket_mb = bucket_mb};
          if (leaves_out && plan_shards(parallel, test_world().hosts()).splits_parameters()) continue;
          const auto expected = gradients_of(by_device, parallel, dtype, leaves_out);
          const auto together = gradients_of(everywhere, parallel, dtype, leaves_out);
          ASSERT_EQ(together.size(), expected.size());
          for (std::size_t b = 0; b < together.size(); ++b)
            EXPECT_TRUE(torch::equal(together[b], expected[b]))
                << to_string(strategy) << ", buckets of " << bucket_mb << " MB, " << dtype << ", bucket " << b
                << (leaves_out ? ", without the first layer in some passes" : "");
        }
}

// As behind a CUDA graph, whose gradients are in the sums already.
TEST(GradientBuckets, ARepeatedPassIsCountedAndAddsNothing) {
  for (const auto strategy : {Strategy::ddp, Strategy::shard_grad_op})
    for (const double bucket_mb : {0.001, 64.0}) {
      const ParallelConfig parallel{.strategy = strategy, .bucket_mb = bucket_mb};
      const auto plan = plan_shards(parallel, test_world().hosts());
      const auto gradients_of_step = [&](bool with_repeats) {
        auto net = make_net(5);
        ShardedModel model(*net, parameter_names(*net), plan, parallel, test_world().group());
        model.begin_gradients(with_repeats ? 5 : 2);
        const auto repeat = [&] {
          if (with_repeats) model.repeat_gradients();
        };
        loss_of(net, batch_of_step(1), 4 * test_world().rank(), 16).backward();
        EXPECT_TRUE(model.has_all_gradients());
        repeat();
        repeat();
        loss_of(net, batch_of_step(2), 0, 16 - test_world().rank()).backward();
        repeat();
        EXPECT_TRUE(model.has_all_gradients());
        if (with_repeats) {
          EXPECT_THROW(model.repeat_gradients(), Error) << "one too many";
        }
        model.finish_gradients();
        std::vector<torch::Tensor> gradients;
        for (int b = 0; b < model.buckets(); ++b) gradients.push_back(model.gradient_shard(b).clone());
        return gradients;
      };
      const auto expected = gradients_of_step(false), actual = gradients_of_step(true);
      for (std::size_t b = 0; b < expected.size(); ++b)
        EXPECT_TRUE(torch::equal(actual[b], expected[b])) << to_string(strategy) << ", bucket " << b;
    }
}

TEST(GradientBuckets, APassThatLeavesParametersOutIsTold) {
  const auto net = std::make_shared<Uneven>();
  ShardedModel model(*net, parameter_names(*net), plan_shards({}, test_world().hosts()), {}, test_world().group());
  model.begin_gradients(2);
  EXPECT_TRUE(model.has_all_gradients());
  for (const bool whole : {true, false}) {
    net->forward(torch::ones({4, 5}), whole).sum().backward();
    EXPECT_EQ(model.has_all_gradients(), whole);
  }
  model.finish_gradients();
}

}  // namespace
}  // namespace millrace
