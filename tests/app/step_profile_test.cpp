#include "bench/step_profile.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/utils.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "millrace/kernels/ops.h"
#include "millrace/nn/attention.h"
#include "millrace/nn/convolution.h"

namespace millrace {
namespace {

using enum ProfileEvent::Kind;

TEST(StepProfile, OperationsHaveAClassByTheirName) {
  EXPECT_EQ(class_of("aten::conv2d"), OpClass::convolution);
  EXPECT_EQ(class_of("aten::convolution_backward"), OpClass::convolution);
  EXPECT_EQ(class_of("aten::cudnn_convolution_add_relu"), OpClass::convolution);
  EXPECT_EQ(class_of("aten::mkldnn_convolution"), OpClass::convolution);
  EXPECT_EQ(class_of("millrace::convolution_by_columns_backward"), OpClass::convolution);
  EXPECT_EQ(class_of("aten::addmm"), OpClass::matrix_product);
  EXPECT_EQ(class_of("aten::mkldnn_linear_backward"), OpClass::matrix_product);
  EXPECT_EQ(class_of("aten::_scaled_dot_product_flash_attention_for_cpu_backward"), OpClass::attention);
  EXPECT_EQ(class_of("aten::_flash_attention_forward"), OpClass::attention);
  EXPECT_EQ(class_of("aten::_cudnn_attention_backward"), OpClass::attention);
  EXPECT_EQ(class_of("millrace::small_attention"), OpClass::attention);
  EXPECT_EQ(class_of("aten::native_group_norm_backward"), OpClass::normalisation);
  EXPECT_EQ(class_of("millrace::group_norm_silu_backward"), OpClass::normalisation);
  EXPECT_EQ(class_of("aten::add"), OpClass::pointwise);
  EXPECT_EQ(class_of("aten::add_"), OpClass::pointwise);
  EXPECT_EQ(class_of("aten::gelu_backward"), OpClass::pointwise);
  EXPECT_EQ(class_of("millrace::geglu"), OpClass::pointwise);
  EXPECT_EQ(class_of("aten::_fused_adamw_"), OpClass::optimizer);
  EXPECT_EQ(class_of("millrace::adamw_step"), OpClass::optimizer);
  EXPECT_EQ(class_of("millrace::sum_gradients"), OpClass::communication);
  EXPECT_EQ(class_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), OpClass::communication);
  EXPECT_EQ(class_of("aten::copy_"), OpClass::copy);
  EXPECT_EQ(class_of("aten::_to_copy"), OpClass::copy);
  EXPECT_EQ(class_of("Memcpy HtoD (Pinned -> Device)"), OpClass::copy);
  EXPECT_EQ(class_of("Memset (Device)"), OpClass::copy);
  EXPECT_EQ(class_of("aten::address"), OpClass::other);
  EXPECT_EQ(class_of("aten::view"), OpClass::other);
  EXPECT_EQ(class_of("autograd::engine::evaluate_function: AddmmBackward0"), OpClass::other);
  EXPECT_EQ(class_of(""), OpClass::other);
}

const StepProfile::Part& part_of(const StepProfile& profile, OpClass op_class) {
  return profile.classes[static_cast<std::size_t>(op_class)];
}

// Part of a profile of `steps` steps, in ns and calls of all of them.
void expect_part(const StepProfile& profile, const StepProfile::Part& part, double ns, double calls) {
  EXPECT_NEAR(part.ms * profile.steps, 1e-6 * ns, 1e-12);
  EXPECT_NEAR(part.calls * profile.steps, calls, 1e-9);
}

TEST(StepProfile, OnTheCpuAnOperationsTimeIsWithoutThoseInsideIt) {
  const std::vector<ProfileEvent> events = {
      {operation, "aten::mm", 1, -300, -200, 1},  // warming up
      {operation, profiled_steps, 1, 0, 1000, 2},  {operation, "aten::linear", 1, 100, 400, 3},
      {operation, "aten::addmm", 1, 150, 350, 4},  {operation, "aten::copy_", 1, 200, 250, 5},
      {operation, "AddBackward0", 1, 500, 700, 6}, {operation, "aten::add_", 1, 550, 650, 7},
      {operation, "aten::mm", 2, 500, 900, 8},  // another thread's
      {operation, "aten::item", 1, 790, 830, 9},   {operation, "aten::_local_scalar_dense", 1, 800, 820, 10},
  };
  const auto profile = summarise(events, 2, /*on_gpu=*/false);
  EXPECT_DOUBLE_EQ(profile.ms, 0.0005);
  expect_part(profile, part_of(profile, OpClass::matrix_product), 250, 1);
  expect_part(profile, part_of(profile, OpClass::copy), 50, 1);
  expect_part(profile, part_of(profile, OpClass::pointwise), 100, 1);
  expect_part(profile, part_of(profile, OpClass::other), 140, 2);
  expect_part(profile, part_of(profile, OpClass::idle), 460, 0);
  expect_part(profile, part_of(profile, OpClass::convolution), 0, 0);
  EXPECT_DOUBLE_EQ(profile.synchronisations, 0.5);
}

std::vector<ProfileEvent> events_with_gpu() {
  return {
      {operation, profiled_steps, 1, 0, 10000, 1},
      {operation, "aten::conv2d", 1, 100, 600, 2},
      {operation, "aten::copy_", 1, 150, 250, 3},
      {operation, "aten::convolution_backward", 2, 1000, 2000, 4},
      {operation, "aten::_scaled_dot_product_attention_math", 1, 3000, 4000, 5},
      {operation, "aten::bmm", 1, 3100, 3200, 6},
      {runtime_call, "cudaLaunchKernel", 1, 120, 130},
      {runtime_call, "cudaStreamSynchronize", 2, 1200, 1300},
      {runtime_call, "cudaDeviceSynchronize", 1, 10500, 11500},  // after the steps
      {device_work, "warming up", 0, -500, -100, 0, 0},
      {device_work, "implicit_gemm", 0, 500, 1500, 0, 2},
      {device_work, "elementwise", 0, 1500, 1700, 0, 3},
      {device_work, "wgrad", 0, 2000, 5000, 0, 4},
      {device_work, "gemm", 0, 5000, 6000, 0, 6},
      {device_work, "Memcpy HtoD (Pinned -> Device)", 0, 5500, 5700, 0, 2},
      {device_work, "ncclDevKernel_AllReduce", 0, 9000, 11000, 0, 0},
      {device_work, "a kernel of nobody", 0, 11000, 11500, 0, 1},
  };
}

TEST(StepProfile, KernelsBelongToTheOperationThatLaunchedThem) {
  const auto profile = summarise(events_with_gpu(), 2, /*on_gpu=*/true);
  EXPECT_DOUBLE_EQ(profile.ms, 0.5 * 0.0115);  // to the end of the last kernel
  expect_part(profile, part_of(profile, OpClass::convolution), 4000, 2);
  expect_part(profile, part_of(profile, OpClass::copy), 400, 2);
  expect_part(profile, part_of(profile, OpClass::attention), 1000, 1);
  expect_part(profile, part_of(profile, OpClass::matrix_product), 0, 0);
  expect_part(profile, part_of(profile, OpClass::communication), 2000, 1);
  expect_part(profile, part_of(profile, OpClass::other), 500, 1);
  expect_part(profile, part_of(profile, OpClass::idle), 3800, 0);
  expect_part(profile, profile.to_device, 200, 1);
  expect_part(profile, profile.to_host, 0, 0);
  EXPECT_DOUBLE_EQ(profile.overlap_ms, 0.5 * 0.0002);
  EXPECT_DOUBLE_EQ(profile.synchronisations, 0.5);

  ASSERT_EQ(profile.kernels.size(), 7u);
  EXPECT_EQ(profile.kernels[0].operation, "aten::convolution_backward");
  EXPECT_EQ(profile.kernels[0].name, "wgrad");
  expect_part(profile, profile.kernels[0].part, 3000, 1);
  EXPECT_EQ(profile.kernels[1].operation, "");
  EXPECT_EQ(profile.kernels[1].name, "ncclDevKernel_AllReduce");
  expect_part(profile, profile.kernels[6].part, 200, 1);
}

TEST(StepProfile, IdleBehindCopiesToTheHostIsThatOfTheHostsLook) {
  const std::vector<ProfileEvent> events = {
      {operation, profiled_steps, 1, 0, 10000, 1},
      {device_work, "a", 0, 0, 1000},
      {device_work, "b", 0, 1200, 2000},  // no look before
      {device_work, "Memcpy DtoH (Device -> Pinned)", 0, 2000, 2100},
      {device_work, "c", 0, 2600, 4000},
      {device_work, "Memcpy DtoH (Device -> Pinned)", 0, 3000, 3100},  // beside another kernel
      {device_work, "d", 0, 4300, 5000},
      {device_work, "Memcpy DtoH (Device -> Pinned)", 0, 5000, 5100},  // and nothing behind it
  };
  EXPECT_DOUBLE_EQ(summarise(events, 2, /*on_gpu=*/true).idle_behind_reads_ms, 0.5 * 0.0005);
}

TEST(StepProfile, KernelsOfOneNameAndOperationAreAddedUp) {
  const std::vector<ProfileEvent> events = {
      {operation, profiled_steps, 1, 0, 10000, 1},    {operation, "aten::mm", 1, 100, 600, 2},
      {operation, "aten::mm", 1, 700, 900, 3},        {operation, "aten::bmm", 1, 950, 990, 4},
      {device_work, "void gemm", 0, 500, 900, 0, 2},  {device_work, "void gemm", 0, 1000, 1500, 0, 3},
      {device_work, "void gemm", 0, 1500, 2300, 0, 4}};
  const auto profile = summarise(events, 1, /*on_gpu=*/true);
  ASSERT_EQ(profile.kernels.size(), 2u);
  EXPECT_EQ(profile.kernels[0].operation, "aten::mm");
  expect_part(profile, profile.kernels[0].part, 900, 2);
  EXPECT_EQ(profile.kernels[1].operation, "aten::bmm");
  EXPECT_NE(to_text(profile).find("\n     0.001      2.0  aten::mm  gemm\n"), std::string::npos) << to_text(profile);
}

TEST(StepProfile, TextAndJsonTellTheSame) {
  const auto profile = summarise(events_with_gpu(), 1, /*on_gpu=*/true);
  const auto text = to_text(profile);
  const auto json = to_json(profile);
  EXPECT_EQ(json["device"], "cuda");
  ASSERT_EQ(json["classes"].size(), static_cast<std::size_t>(op_classes));
  for (const auto& row : json["classes"]) {
    const auto line = fmt::format("\n{:<16} {:>10.3f} {:>7.2f} % {:>12.1f}\n", row["class"].get<std::string>(),
                                  row["ms"].get<double>(), row["percent"].get<double>(), row["calls"].get<double>());
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
  EXPECT_EQ(json["copies"][0]["direction"], "host->device");
  EXPECT_EQ(json["copies"][0]["calls"], 1);
  EXPECT_EQ(json["kernels"][0]["name"], "wgrad");
  EXPECT_EQ(json["kernels"][0]["operation"], "aten::convolution_backward");
  EXPECT_EQ(json["synchronisations"], 1);
}

torch::Tensor parameter(at::IntArrayRef sizes) {
  return at::ones(sizes).requires_grad_(true);
}

// What does not go through LibTorch's dispatcher has a name, in backward, too.
TEST(StepProfile, OurOwnOperationsAreSeen) {
  const auto profile = profile_steps(torch::kCPU, [] {
    const auto deep = nn::conv2d(parameter({1, 64, 1, 2}), parameter({64, 64, 3, 3}), parameter({64}), 1, 1);
    const auto tokens = parameter({2, 16, 16});
    const auto attended = nn::attention(tokens, tokens, tokens, /*heads=*/2);
    const auto normal = kernels::layer_norm(attended, parameter({16}), parameter({16}), 1e-5);
    const auto loss = deep.sum() + kernels::geglu(normal).sum();
    loss.backward();
    kernels::square_sum(at::ones({5}), at::zeros({1}, torch::kFloat64));
    loss.item<double>();
  });
  // Forward, backward; what they are made of is theirs.
  EXPECT_NEAR(part_of(profile, OpClass::convolution).calls, 2, 1e-9);
  EXPECT_NEAR(part_of(profile, OpClass::attention).calls, 2, 1e-9);
  EXPECT_NEAR(part_of(profile, OpClass::normalisation).calls, 2, 1e-9);
  EXPECT_NEAR(part_of(profile, OpClass::optimizer).calls, 1, 1e-9);
  EXPECT_NEAR(part_of(profile, OpClass::matrix_product).calls, 0, 1e-9);
  EXPECT_GT(part_of(profile, OpClass::pointwise).calls, 2);
  EXPECT_NEAR(profile.synchronisations, 1, 1e-9);
  double sum = 0;
  for (const auto& part : profile.classes) {
    EXPECT_GE(part.ms, 0);
    sum += part.ms;
  }
  EXPECT_NEAR(sum, profile.ms, 1e-6 * profile.ms);
}

}  // namespace
}  // namespace millrace
