#include "millrace/nn/attention.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST_P(AttentionTest, IsItsDefinitionForwardAndBackward) {
  const Shape s = GetParam();
  torch::manual_seed(1);
  std::vector<torch::Tensor> inputs;
  for (const auto length : {s.rows, s.columns, s.columns}) {
    inputs.push_back(torch::randn({s.batch, length, s.heads * s.head_dim}).requires_grad_());
  }
  const auto output = attention(inputs[0], inputs[1], inputs[2], s.heads, s.causal);
  const auto expected = reference(inputs[0], inputs[1], inputs[2], s.heads, s.causal);
  ASSERT_EQ(output.sizes(), expected.sizes());
  EXPECT_LT((output - expected).abs().max().item<double>(), 1e-5);
  const auto weight = torch::randn_like(output);
  const auto actual_grads = torch::autograd::grad({(output * weight).sum()}, inputs);
  const auto expected_grads = torch::autograd::grad({(expected * weight).sum()}, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_LT((actual_grads[i] - expected_grads[i]).abs().max().item<double>(), 1e-4) << i;
  }
}

// Both sides of the rule that chooses between the two ways, and shapes without a common factor.
INSTANTIATE_TEST_SUITE_P(, AttentionTest,
                         testing::Values(Shape{2, 4, 16, 64, 77}, Shape{3, 1, 7, 5, 3}, Shape{2, 3, 8, 13, 128},
                                         Shape{1, 2, 8, 40, 300}, Shape{1, 1, 64, 129, 129},
                                         Shape{2, 4, 8, 20, 20, true}, Shape{1, 2, 16, 200, 200, true}));

}  // namespace
}  // namespace millrace::nn
