// The loss on a fixed set, split over the ranks of the test, against the objective computed sample by sample.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "devices.h"
#include "millrace/train/validation.h"
#include "mpi_world.h"
#include "parcels/encodings.h"
#include "small_unet.h"

namespace millrace {
namespace {

constexpr int samples = 10;

ObjectiveConfig objective() {
  return {.caption_dropout = 0, .snr_gamma = 0.5};
}

Validation::Options options(int micro_batch, const ObjectiveConfig& objective, torch::Device device = torch::kCPU) {
  Validation::Options options;
  options.device = device;
  options.objective = objective;
  options.samples = samples;
  options.micro_batch = micro_batch;
  options.latent_scale = {0.5, 0.25};
  return options;
}

NoiseSchedule schedule() {
  return NoiseSchedule(SchedulerConfig::stable_diffusion(Prediction::epsilon));
}

// Ten samples in batches of unequal size: of two ranks the first has seven of them, the second the other three.
std::vector<EncodedBatch> own_share() {
  const auto a = test::make_batch(0, 0, 2), b = test::make_batch(1, 98, 5), c = test::make_batch(2, 0, 3);
  const int rank = test_world().rank();
  switch (test_world().size()) {
    case 1:
      return {a, b, c};
    case 2:
      return rank == 0 ? std::vector{a, b} : std::vector{c};
    default:
      return {
          std::array{a, test::make_batch(1, 98, 4), test::make_batch(1, 102, 1), c}.at(static_cast<std::size_t>(rank))};
  }
}

ValidationLoss measure(Validation& validation) {
  return validation.loss(test_world().group(), [] { return false; }).value();
}

double loss(UNet2DConditionModel& unet, int micro_batch, const ObjectiveConfig& objective,
            torch::Device device = torch::kCPU) {
  Validation validation(unet, schedule(), own_share(), options(micro_batch, objective, device));
  return measure(validation).mean;
}

// Timestep and loss of each sample.
std::vector<std::pair<std::int64_t, double>> reference_losses(UNet2DConditionModel& unet) {
  const torch::NoGradGuard no_grad;
  std::vector<std::pair<std::int64_t, double>> losses;
  for (const auto& [stripe, first, count] : std::vector<std::array<int, 3>>{{0, 0, 2}, {1, 98, 5}, {2, 0, 3}})
    for (int n = first; n < first + count; ++n) {
      const auto sample = test::make_batch(static_cast<std::uint32_t>(stripe), n, 1);
      const RngKey key{validation_seed, sample.refs[0].hash, sample.refs[0].epoch};
      const auto input = make_step_input(sample.moments, sample.text, sample.text[0], std::span(&key, 1),
                                         uniform_timesteps(std::span(&key, 1), 1000), {0.5, 0.25}, schedule(),
                                         objective(), torch::kCPU);
      const auto prediction = unet->forward(input.noisy, input.timesteps, input.text.to(torch::kFloat32));
      losses.emplace_back(input.timesteps.item<std::int64_t>(),
                          input.weight.item<double>() * (prediction - input.target).square().mean().item<double>());
    }
  return losses;
}

double reference(UNet2DConditionModel& unet) {
  double sum = 0;
  for (const auto& [timestep, loss] : reference_losses(unet)) sum += loss;
  return sum / samples;
}

class ValidationOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(ValidationOnDevice);

// ... as the CPU computes it. A GPU's kernels add in another order and round the timestep's sines otherwise.
TEST_P(ValidationOnDevice, IsTheMeanOverAllSamplesHoweverTheyAreSplit) {
  auto unet = test::make_small_unet();
  const double expected = reference(unet), tolerance = is_cuda() ? 1e-4 : 1e-6;
  nn::place(*unet, device(), torch::kFloat32);
  for (const int micro : {1, 2, 3, 10})
    EXPECT_NEAR(loss(unet, micro, objective(), device()), expected, tolerance * expected) << micro;
}

TEST(Validation, TellsTheMeanOfEachTenthOfTheTimesteps) {
  auto unet = test::make_small_unet();
  Validation validation(unet, schedule(), own_share(), options(2, objective()));
  const auto loss = measure(validation);
  ASSERT_EQ(loss.by_timestep.size(), 10u);
  EXPECT_EQ(loss.by_timestep[0].name(), "0-99");
  EXPECT_EQ(loss.by_timestep[9].name(), "900-999");
  std::map<std::int64_t, std::vector<double>> expected;
  for (const auto& [timestep, value] : reference_losses(unet)) expected[timestep / 100].push_back(value);
  for (std::int64_t tenth = 0; tenth < 10; ++tenth) {
    const double mean = loss.by_timestep[static_cast<std::size_t>(tenth)].mean;
    const auto& values = expected[tenth];
    if (values.empty()) {
      EXPECT_TRUE(std::isnan(mean)) << tenth;
    } else {
      const double sum = std::accumulate(values.begin(), values.end(), 0.0);
      EXPECT_NEAR(mean, sum / static_cast<double>(values.size()), 1e-6 * mean) << tenth;
    }
  }
}

// That of the same objective without weights, to the bit.
TEST(Validation, TellsTheLossWithoutTheWeightsToo) {
  auto unet = test::make_small_unet();
  auto plain = objective();
  plain.snr_gamma.reset();
  Validation weighted(unet, schedule(), own_share(), options(2, objective()));
  Validation unweighted(unet, schedule(), own_share(), options(2, plain));
  const auto both = measure(weighted), one = measure(unweighted);
  EXPECT_FALSE(one.unweighted);
  EXPECT_EQ(both.unweighted, one.mean);
  EXPECT_LT(both.mean, one.mean);
  for (std::size_t tenth = 0; tenth < 10; ++tenth) {
    const double expected = one.by_timestep[tenth].mean, found = both.by_timestep[tenth].unweighted;
    EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << tenth;
  }
}

// Asked before each turn, as often on all ranks; all have as many as the one with most samples.
TEST(Validation, IsGivenUpBeforeTheTurnAtWhichAllSaySo) {
  auto unet = test::make_small_unet();
  unet->train();
  Validation validation(unet, schedule(), own_share(), options(1, objective()));
  const auto& trainers = test_world().group();
  int asked = 0;
  EXPECT_FALSE(validation.loss(trainers, [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(unet->is_training());

  asked = 0;
  const auto whole = validation.loss(trainers, [&] { return ++asked < 0; });
  const std::map<int, int> turns = {{1, 10}, {2, 7}, {4, 4}};
  EXPECT_EQ(asked, turns.at(trainers.size()));
  EXPECT_EQ(whole->mean, measure(validation).mean);
}

TEST(Validation, KnowsNeitherCaptionDropNorInputPerturbation) {
  auto unet = test::make_small_unet();
  auto disturbed = objective();
  disturbed.caption_dropout = 1;
  disturbed.input_perturbation = 0.5;
  EXPECT_EQ(loss(unet, 2, disturbed), loss(unet, 2, objective()));
}

TEST(Validation, KnowsNoDropout) {
  auto with_dropout = test::make_small_unet(/*dropout=*/0.5), without = test::make_small_unet();
  with_dropout->train();
  EXPECT_EQ(loss(with_dropout, 2, objective()), loss(without, 2, objective()));
}

TEST(Validation, AsksTheSameEachTimeAndLeavesTheNetworkAsItIs) {
  auto unet = test::make_small_unet();
  unet->train();
  std::vector<torch::Tensor> before;
  for (const auto& parameter : unet->parameters()) before.push_back(parameter.detach().clone());
  Validation validation(unet, schedule(), own_share(), options(2, objective()));
  const double first = measure(validation).mean;
  EXPECT_EQ(measure(validation).mean, first);
  EXPECT_TRUE(unet->is_training());
  const auto parameters = unet->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(parameters[i], before[i]));
    EXPECT_FALSE(parameters[i].grad().defined());
  }
}

TEST(Validation, SeesTheWeightsOfTheMoment) {
  auto unet = test::make_small_unet();
  Validation validation(unet, schedule(), own_share(), options(2, objective()));
  const double before = measure(validation).mean;
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : unet->parameters()) parameter.mul_(1.1);
  }
  const double after = measure(validation).mean;
  EXPECT_NE(after, before);
  const double expected = reference(unet);
  EXPECT_NEAR(after, expected, 1e-6 * expected);
}

}  // namespace
}  // namespace millrace
