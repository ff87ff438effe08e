#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu/attention_small.h"
#include "live_memory.h"
#include "millrace/nn/attention.h"

namespace millrace::nn {
namespace {

// The definition, in double precision.
torch::Tensor reference(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                        bool causal) {
  const auto split = [&](const torch::Tensor& x) {
    return x.to(torch::kDouble).view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  };
  auto scores = torch::matmul(split(q), split(k).transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(2) / heads));
  if (causal) {
    const auto future = torch::ones({q.size(1), k.size(1)}, torch::kBool).triu(1);
    scores = scores.masked_fill(future, -INFINITY);
  }
  return torch::matmul(scores.softmax(-1), split(v)).transpose(1, 2).flatten(2);
}

struct Shape {
  std::int64_t batch, heads, head_dim, rows, columns;
  bool causal = false;
};

class AttentionTest : public testing::TestWithParam<Shape> {};

std::vector<torch::Tensor> random_inputs(const Shape& s) {
  torch::manual_seed(1);
  std::vector<torch::Tensor> inputs;
  for (const auto length : {s.rows, s.columns, s.columns}) {
    inputs.push_back(torch::randn({s.batch, length, s.heads * s.head_dim}).requires_grad_());
  }
  return inputs;
}

void expect_definition(const std::vector<torch::Tensor>& inputs, const torch::Tensor& q, const torch::Tensor& k,
                       const torch::Tensor& v, std::int64_t heads, bool causal = false) {
  const auto output = attention(q, k, v, heads, causal);
  const auto expected = reference(q, k, v, heads, causal);
  ASSERT_EQ(output.sizes(), expected.sizes());
  EXPECT_LT((output - expected).abs().max().item<double>(), 1e-5);
  const auto weight = torch::randn_like(output);
  const auto actual_grads = torch::autograd::grad({(output * weight).sum()}, inputs);
  const auto expected_grads = torch::autograd::grad({(expected * weight).sum()}, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_LT((actual_grads[i] - expected_grads[i]).abs().max().item<double>(), 1e-4) << i;
  }
}

TEST_P(AttentionTest, IsItsDefinitionForwardAndBackward) {
  const Shape s = GetParam();
  const auto inputs = random_inputs(s);
  expect_definition(inputs, inputs[0], inputs[1], inputs[2], s.heads, s.causal);
}

// Both sides of the rule that chooses between the two ways, full and broken tiles, and shapes without a common factor.
INSTANTIATE_TEST_SUITE_P(, AttentionTest,
                         testing::Values(Shape{2, 4, 16, 64, 77}, Shape{3, 1, 7, 5, 3}, Shape{2, 3, 8, 13, 128},
                                         Shape{1, 2, 8, 40, 300}, Shape{1, 1, 64, 129, 129},
                                         Shape{2, 4, 8, 20, 20, true}, Shape{1, 2, 16, 200, 200, true},
                                         Shape{2, 8, 4, 16, 77}, Shape{2, 2, 20, 9, 77}, Shape{1, 1, 8, 1, 1},
                                         Shape{2, 3, 16, 1, 77}, Shape{2, 3, 16, 77, 1}, Shape{3, 8, 16, 4, 4},
                                         Shape{2, 2, 16, 8, 3}, Shape{1, 4, 24, 17, 5}, Shape{1, 3, 40, 130, 77},
                                         Shape{1, 2, 64, 33, 130}, Shape{1, 2, 64, 300, 77}, Shape{1, 1, 160, 16, 77}));

TEST(Attention, ReadsSlicesOfAJointProjection) {
  torch::manual_seed(2);
  const auto joint = torch::randn({2, 19, 3 * 48}).requires_grad_();
  const auto parts = joint.chunk(3, 2);
  expect_definition({joint}, parts[0], parts[1], parts[2], 3);
}

TEST(Attention, ReadsChannelsThatAreApart) {
  torch::manual_seed(3);
  const auto by_channel = torch::randn({2, 48, 19}).requires_grad_();
  const auto x = by_channel.transpose(1, 2);
  expect_definition({by_channel}, x, x, x, 3);
}

TEST(Attention, TakesAGradientWithoutStorageOfItsOwn) {
  const auto inputs = random_inputs({2, 3, 16, 10, 11});
  const auto expanded = torch::autograd::grad({attention(inputs[0], inputs[1], inputs[2], 3).sum()}, inputs);
  const auto expected = torch::autograd::grad({reference(inputs[0], inputs[1], inputs[2], 3, false).sum()}, inputs);
  for (int i = 0; i < 3; ++i) EXPECT_LT((expanded[i] - expected[i]).abs().max().item<double>(), 1e-4) << i;
}

// Whole numbers, whose scores of up to some ten thousand are exact in either precision.
TEST(Attention, LargeScoresDoNotOverflow) {
  torch::manual_seed(4);
  const auto q = torch::randint(-60, 61, {2, 20, 32}).to(torch::kFloat).requires_grad_();
  const auto k = torch::randint(-60, 61, {2, 77, 32}).to(torch::kFloat).requires_grad_();
  const auto v = torch::randn({2, 77, 32}).requires_grad_();
  const auto output = attention(q, k, v, 2);
  EXPECT_LT((output - reference(q, k, v, 2, false)).abs().max().item<double>(), 1e-5);
  for (const auto& grad : torch::autograd::grad({output.square().sum()}, {q, k, v})) {
    EXPECT_TRUE(grad.isfinite().all().item<bool>());
  }
}

// Encoders and samplers have no backward, for which probabilities would be kept.
TEST(Attention, KeepsNothingWithoutABackward) {
  const auto inputs = random_inputs({16, 4, 16, 64, 77});
  const auto own = attention(inputs[0], inputs[1], inputs[2], 4);
  const torch::NoGradGuard no_grad;
  const int threads_before = at::get_num_threads();
  at::set_num_threads(1);
  {
    const test::LiveMemory memory;
    EXPECT_TRUE(attention(inputs[0], inputs[1], inputs[2], 4).equal(own));
    const std::int64_t head = HeadShape{64, 77, 16}.probabilities() + HeadShape{64, 77, 16}.scratch();
    EXPECT_LT(memory.peak(), static_cast<std::int64_t>(sizeof(float)) * (own.numel() + head) + 1024);
  }
  at::set_num_threads(threads_before);
}

TEST(Attention, RefusesHeadsThatDoNotDivide) {
  const auto x = torch::randn({1, 6, 24});
  EXPECT_ANY_THROW(attention(x, x, x, 5));
  EXPECT_ANY_THROW(small_attention(x, x, x, 2));
  EXPECT_ANY_THROW(small_attention(x, x, torch::randn({1, 5, 24}), 3));
}

TEST(Attention, NaNStaysInItsRow) {
  const auto inputs = random_inputs({1, 1, 16, 20, 5});
  const torch::NoGradGuard no_grad;
  inputs[0][0][3][7] = NAN;
  const auto broken = attention(inputs[0], inputs[1], inputs[2], 1).isnan();
  EXPECT_TRUE(broken[0][3].all().item<bool>());
  EXPECT_EQ(broken.sum().item<int>(), 16);
}

TEST(Attention, DoesNotDependOnTheNumberOfThreads) {
  const auto inputs = random_inputs({7, 3, 16, 30, 77});
  const int threads_before = at::get_num_threads();
  std::vector<std::vector<torch::Tensor>> results;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const auto output = attention(inputs[0], inputs[1], inputs[2], 3);
    results.push_back(torch::autograd::grad({output.square().sum()}, inputs));
    results.back().push_back(output);
  }
  at::set_num_threads(threads_before);
  for (std::size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
    EXPECT_TRUE(results[0][i].equal(results[2][i])) << i;
  }
}

// The threads that make tensors while it lives.
class Threads {
 public:
  Threads() : handle_(at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}))) {
    seen_.clear();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { at::removeCallback(handle_); }
  static std::size_t count() { return seen_.size(); }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "aten::empty") return nullptr;
    const std::lock_guard lock(mutex_);
    seen_.insert(std::this_thread::get_id());
    return nullptr;
  }
  static inline std::mutex mutex_;
  static inline std::set<std::thread::id> seen_;
  at::CallbackHandle handle_;
};

// Loops in the library itself, not only those in LibTorch: each thread makes room for the heads that it computes.
TEST(Attention, HeadsAreDealtToAllThreads) {
#if defined(__clang__)
  GTEST_SKIP() << "this compiler's OpenMP is not LibTorch's: loops of our own run on one thread";
#endif
  const auto inputs = random_inputs({8, 4, 64, 64, 77});
  const int threads_before = at::get_num_threads();
  std::vector<std::size_t> counts;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const Threads watched;
    attention(inputs[0], inputs[1], inputs[2], 4);
    counts.push_back(watched.count());
  }
  at::set_num_threads(threads_before);
  EXPECT_EQ(counts, (std::vector<std::size_t>{1, 2}));
}

TEST(Attention, RefusesASecondDerivative) {
  const auto inputs = random_inputs({1, 2, 8, 6, 6});
  const auto output = attention(inputs[0], inputs[1], inputs[2], 2).square().sum();
  EXPECT_ANY_THROW(torch::autograd::grad({output}, inputs, {}, /*retain_graph=*/true, /*create_graph=*/true));
}

// How often LibTorch is asked which kernel it would take, while it lives.
class Questions {
 public:
  Questions()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&count).scopes({at::RecordScope::FUNCTION}))) {
    asked_ = 0;
  }
  ~Questions() { at::removeCallback(handle_); }
  int asked() const { return asked_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    asked_ += std::string_view(function.name()) == "aten::_fused_sdp_choice";
    return nullptr;
  }
  static inline int asked_ = 0;
  at::CallbackHandle handle_;
};

// scaled_dot_product_attention asks by itself each time; by us each case is asked once more.
TEST(Attention, EachCaseIsAskedForItsKernelOnce) {
  const auto inputs = random_inputs({1, 2, 5, 6, 7});
  const auto asked = [&](const std::vector<torch::Tensor>& by) {
    const Questions questions;
    attention(by[0], by[1], by[2], 2);
    return questions.asked();
  };
  const int first = asked(inputs), second = asked(inputs);
  EXPECT_EQ(first, second + 1);
  EXPECT_EQ(asked(random_inputs({2, 2, 5, 6, 7})), first);  // another batch is another case
  EXPECT_NE(attention_kernels().find("LibTorch"), std::string::npos);
  EXPECT_EQ(attention_kernels(), attention_kernels());
}

}  // namespace
}  // namespace millrace::nn
