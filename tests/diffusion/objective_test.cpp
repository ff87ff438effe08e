#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "devices.h"
#include "millrace/core/error.h"
#include "millrace/diffusion/objective.h"
#include "reference.h"

namespace millrace {
namespace {

SchedulerConfig stable_diffusion(Prediction prediction) {
  auto json = reference().at("samplers")[0].at("config");
  json["prediction_type"] = to_string(prediction);
  return SchedulerConfig::from_json(json);
}

// Six encoded samples with numbers that need no generator.
struct Encoded {
  torch::Tensor moments = torch::sin(torch::arange(6 * 8 * 4 * 5, torch::kFloat32)).reshape({6, 8, 4, 5});
  torch::Tensor text = torch::cos(torch::arange(6 * 77 * 3, torch::kFloat32)).reshape({6, 77, 3}).to(torch::kFloat16);
  torch::Tensor null_text = torch::full({77, 3}, 9, torch::kFloat16);
  std::vector<RngKey> keys;
  Encoded() {
    for (std::uint64_t i = 0; i < 6; ++i) keys.push_back({420, 1000 + 17 * i, 2});
  }
};

StepInput step_input(const Encoded& e, const ObjectiveConfig& objective, torch::Device device = torch::kCPU,
                     std::size_t first = 0, std::size_t count = 6) {
  const auto from = static_cast<std::int64_t>(first), to = static_cast<std::int64_t>(first + count);
  const NoiseSchedule schedule(trained_scheduler(stable_diffusion(objective.prediction), objective));
  const auto keys = std::span(e.keys).subspan(first, count);
  return make_step_input(e.moments.slice(0, from, to), e.text.slice(0, from, to), e.null_text, keys,
                         uniform_timesteps(keys, schedule.size()), {0.18215, 0.5}, schedule, objective, device);
}

torch::Tensor expected_normals(const Encoded& e, Purpose purpose, std::vector<std::int64_t> shape) {
  std::vector<torch::Tensor> rows;
  for (const RngKey& key : e.keys) {
    rows.push_back(torch::empty(shape));
    fill_normal(key, purpose, {rows.back().data_ptr<float>(), std::size_t(rows.back().numel())});
  }
  return torch::stack(rows);
}

torch::Tensor alpha_bar(const StepInput& input, const ObjectiveConfig& objective) {
  const NoiseSchedule schedule(trained_scheduler(stable_diffusion(objective.prediction), objective));
  return torch::tensor(schedule.alphas_cumprod(), torch::kFloat64)
      .index_select(0, input.timesteps.cpu())
      .view({-1, 1, 1, 1});
}

void expect_close(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_LT((a.to(torch::kCPU, torch::kFloat64) - b.to(torch::kCPU, torch::kFloat64)).abs().max().item<double>(), 2e-6);
}

void expect_equal(const torch::Tensor& a, const torch::Tensor& b) {
  EXPECT_TRUE(torch::equal(a.cpu(), b.cpu()));
}

class ObjectiveOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(ObjectiveOnDevice);

// Equal to the bit: what the host draws and computes (noise, timesteps, weights), what is only moved (text), and sums
// of products, each rounded on its own (the offset's). Latents are not, because a GPU's exponential rounds otherwise,
// nor is what contains them.
TEST_P(ObjectiveOnDevice, InputsAreThoseOfTheCpu) {
  const Encoded e;
  for (const Prediction prediction : {Prediction::epsilon, Prediction::v_prediction}) {
    const ObjectiveConfig objective{.prediction = prediction,
                                    .caption_dropout = 0.5,
                                    .snr_gamma = 5.0,
                                    .noise_offset = 0.1,
                                    .input_perturbation = 0.3};
    const StepInput input = step_input(e, objective, device()), expected = step_input(e, objective);
    for (const auto member : {&StepInput::latents, &StepInput::text, &StepInput::noise, &StepInput::noisy,
                              &StepInput::timesteps, &StepInput::target, &StepInput::weight}) {
      EXPECT_EQ((input.*member).device(), device());
      EXPECT_EQ((input.*member).scalar_type(), (expected.*member).scalar_type());
    }
    expect_equal(input.noise, expected.noise);
    expect_equal(input.timesteps, expected.timesteps);
    expect_equal(input.weight, expected.weight);
    expect_equal(input.text, expected.text);
    if (prediction == Prediction::epsilon) expect_equal(input.target, expected.target);
    expect_close(input.latents, expected.latents);
    expect_close(input.noisy, expected.noisy);
    expect_close(input.target, expected.target);
  }
}

TEST_P(ObjectiveOnDevice, LatentsAreScaledPosteriorSamples) {
  const Encoded e;
  const StepInput input = step_input(e, {}, device());
  const auto mean = e.moments.slice(1, 0, 4), log_variance = e.moments.slice(1, 4, 8);
  const auto normals = expected_normals(e, Purpose::posterior, {4, 4, 5});
  expect_close(input.latents, (mean + (log_variance / 2).exp() * normals - 0.5) * 0.18215);
}

TEST_P(ObjectiveOnDevice, APosteriorIsSampledByItsKeysAndLetsGradientsPass) {
  const Encoded e;
  const auto moments = e.moments.to(device(), torch::kFloat32, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  const Posterior posterior(moments);
  const auto mean = e.moments.slice(1, 0, 4), deviation = (e.moments.slice(1, 4, 8) / 2).exp();
  const auto sample = posterior.sample(e.keys), normals = expected_normals(e, Purpose::posterior, {4, 4, 5});
  expect_close(sample, mean + deviation * normals);
  EXPECT_TRUE(
      torch::equal(Posterior(moments.slice(0, 2, 5)).sample(std::span(e.keys).subspan(2, 3)), sample.slice(0, 2, 5)));
  sample.sum().backward();
  expect_equal(moments.grad().slice(1, 0, 4), torch::ones({6, 4, 4, 5}));
  expect_close(moments.grad().slice(1, 4, 8), deviation * normals / 2);
  EXPECT_EQ(Posterior(torch::full({1, 2, 1, 1}, 1000.0)).log_variance.item<float>(), 20);
  EXPECT_EQ(Posterior(torch::full({1, 2, 1, 1}, -1000.0)).log_variance.item<float>(), -30);
}

// To the bit on every device, at every timestep: the schedule's numbers are computed in double precision on the host
// and rounded once, and products and sums are rounded on their own.
TEST_P(ObjectiveOnDevice, NumbersOfTheScheduleAreRoundedOnce) {
  const ObjectiveConfig objective{.prediction = Prediction::v_prediction, .snr_gamma = 5.0};
  const NoiseSchedule schedule(trained_scheduler(stable_diffusion(objective.prediction), objective));
  std::vector<RngKey> keys;
  std::vector<std::int64_t> timesteps;
  std::vector<float> signals, spreads, weights;
  for (int t = 0; t < schedule.size(); ++t) {
    keys.push_back({420, static_cast<std::uint64_t>(t), 0});
    timesteps.push_back(t);
    signals.push_back(static_cast<float>(std::sqrt(schedule.alphas_cumprod()[t])));
    spreads.push_back(static_cast<float>(std::sqrt(1 - schedule.alphas_cumprod()[t])));
    weights.push_back(static_cast<float>(loss_weight(schedule, objective, t)));
  }
  const auto moments = torch::sin(torch::arange(8 * schedule.size(), torch::kFloat32)).view({-1, 8, 1, 1});
  const auto text = torch::zeros({schedule.size(), 1, 1}, torch::kHalf);
  const auto input =
      make_step_input(moments, text, text[0], keys, timesteps, {0.18215, 0.5}, schedule, objective, device());
  expect_equal(input.timesteps, torch::tensor(timesteps));
  expect_equal(input.weight, torch::tensor(weights));
  const auto signal = torch::tensor(signals).view({-1, 1, 1, 1}), spread = torch::tensor(spreads).view({-1, 1, 1, 1});
  const auto latents = input.latents.cpu(), noise = input.noise.cpu();
  expect_equal(input.noisy, signal * latents + spread * noise);
  expect_equal(input.target, signal * noise - spread * latents);
}

// Each upload of its own would cost the host a wait, or at least a start.
TEST_P(ObjectiveOnDevice, NumbersAboutSamplesTravelTogether) {
  const StepInput input = step_input(Encoded(), {}, device());
  EXPECT_TRUE(input.timesteps.is_alias_of(input.weight));
}

TEST(Objective, ExtremeVariancesAreClamped) {
  Encoded e;
  e.moments.slice(1, 4, 8).fill_(1000);
  EXPECT_TRUE(step_input(e, {}).latents.isfinite().all().item<bool>());
}

TEST_P(ObjectiveOnDevice, NoiseTimestepsAndTargets) {
  const Encoded e;
  for (const Prediction prediction : {Prediction::epsilon, Prediction::v_prediction}) {
    const ObjectiveConfig objective{.prediction = prediction};
    const StepInput input = step_input(e, objective, device());
    expect_equal(input.noise, expected_normals(e, Purpose::noise, {4, 4, 5}));
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(input.timesteps[i].item<std::int64_t>(), std::int64_t(uniform_int(e.keys[i], Purpose::timestep, 1000)));
    const auto a = alpha_bar(input, objective);
    const auto latents = input.latents.cpu(), noise = input.noise.cpu();
    expect_close(input.noisy, a.sqrt() * latents + (1 - a).sqrt() * noise);
    expect_close(input.target, prediction == Prediction::epsilon ? noise.to(torch::kFloat64)
                                                                 : a.sqrt() * noise - (1 - a).sqrt() * latents);
    expect_equal(input.weight, torch::ones(6));
  }
}

TEST(Objective, NoiseOffsetMovesNoiseAndTargetPerturbationOnlyTheInput) {
  const Encoded e;
  const ObjectiveConfig objective{.noise_offset = 0.1, .input_perturbation = 0.3};
  const StepInput input = step_input(e, objective);
  const auto noise =
      expected_normals(e, Purpose::noise, {4, 4, 5}) + 0.1 * expected_normals(e, Purpose::noise_offset, {4, 1, 1});
  expect_close(input.noise, noise);
  expect_close(input.target, noise);
  const auto a = alpha_bar(input, objective);
  const auto added = noise + 0.3 * expected_normals(e, Purpose::input_perturbation, {4, 4, 5});
  expect_close(input.noisy, a.sqrt() * input.latents + (1 - a).sqrt() * added);
}

TEST_P(ObjectiveOnDevice, CaptionsAreDroppedByTheirOwnKey) {
  const Encoded e;
  const StepInput input = step_input(e, {.caption_dropout = 0.5}, device());
  int dropped = 0;
  for (int i = 0; i < 6; ++i) {
    const bool drop = uniform(e.keys[i], Purpose::caption_drop) < 0.5;
    expect_equal(input.text[i], drop ? e.null_text : e.text[i]);
    dropped += drop;
  }
  EXPECT_TRUE(dropped > 0 && dropped < 6) << "the keys above should show both cases";
  expect_equal(step_input(e, {.caption_dropout = 0}, device()).text, e.text);
  expect_equal(step_input(e, {.caption_dropout = 1}, device()).text[3], e.null_text);
}

TEST_P(ObjectiveOnDevice, MicroBatchesGiveTheSameBits) {
  const Encoded e;
  const ObjectiveConfig objective{.snr_gamma = 5.0, .noise_offset = 0.1, .input_perturbation = 0.1};
  const StepInput whole = step_input(e, objective, device());
  for (const std::size_t micro : {1u, 2u, 3u}) {
    for (std::size_t first = 0; first < 6; first += micro) {
      const StepInput part = step_input(e, objective, device(), first, micro);
      const auto same = [&](torch::Tensor StepInput::*member) {
        return torch::equal((part.*member), (whole.*member).slice(0, std::int64_t(first), std::int64_t(first + micro)));
      };
      EXPECT_TRUE(same(&StepInput::latents) && same(&StepInput::text) && same(&StepInput::noise) &&
                  same(&StepInput::noisy) && same(&StepInput::timesteps) && same(&StepInput::target) &&
                  same(&StepInput::weight));
    }
  }
}

TEST(Objective, MinSnrWeightsFollowDiffusersSnr) {
  for (const auto& row : reference().at("schedules")) {
    const NoiseSchedule schedule(SchedulerConfig::from_json(row.at("config")));
    for (std::size_t i = 0; i < row.at("timesteps").size(); ++i) {
      const double snr = row.at("snr")[i], least = std::min(snr, 5.0);
      const int t = row.at("timesteps")[i];
      const double v = loss_weight(schedule, {.prediction = Prediction::v_prediction, .snr_gamma = 5.0}, t);
      EXPECT_NEAR(v, least / (snr + 1), 1e-6 * v) << t;
      if (snr == 0) continue;
      const double epsilon = loss_weight(schedule, {.snr_gamma = 5.0}, t);
      EXPECT_NEAR(epsilon, least / snr, 1e-6 * epsilon) << t;
    }
  }
}

TEST_P(ObjectiveOnDevice, LossIsTheWeightedMeanSquarePerSample) {
  StepInput input;
  input.target = torch::zeros({2, 4, 2, 2}, device());
  input.weight = torch::tensor({1.0f, 0.5f}, device());
  const auto prediction =
      torch::stack({torch::full({4, 2, 2}, 2.0f), torch::full({4, 2, 2}, 3.0f)}).to(device(), torch::kBFloat16);
  const torch::Tensor loss = diffusion_loss(prediction, input);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
  expect_equal(loss, torch::tensor({4.0f, 4.5f}));
}

std::vector<RngKey> keys_of_batch(std::int64_t size) {
  std::vector<RngKey> keys;
  for (std::int64_t i = 0; i < size; ++i) keys.push_back({420, 77 + 31 * static_cast<std::uint64_t>(i), 1});
  return keys;
}

// Parts are p/G <= x < (p+1)/G of the range, whether or not G divides it, and more of them than timesteps.
TEST(Objective, AStratifiedStepDrawsOnceFromEachPartOfTheTimesteps) {
  for (const auto& [batch, steps] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 1000}, {7, 10}, {10, 1000}, {64, 1000}, {300, 1000}, {2048, 1000}, {5000, 1000}}) {
    const auto keys = keys_of_batch(batch);
    auto timesteps = stratified_timesteps(keys, 420, {3, batch, 0}, steps);
    if (batch > 1) {
      EXPECT_NE(timesteps, stratified_timesteps(keys, 420, {4, batch, 0}, steps));
      EXPECT_NE(timesteps, stratified_timesteps(keys, 421, {3, batch, 0}, steps));
      EXPECT_FALSE(std::ranges::is_sorted(timesteps));
    }
    std::ranges::sort(timesteps);
    for (std::int64_t part = 0; part < batch; ++part) {
      const auto first = part * steps / batch, end = ((part + 1) * steps + batch - 1) / batch;
      EXPECT_GE(timesteps[static_cast<std::size_t>(part)], first) << batch << " samples, part " << part;
      EXPECT_LT(timesteps[static_cast<std::size_t>(part)], end) << batch << " samples, part " << part;
    }
  }
}

TEST(Objective, StratifiedTimestepsDoNotDependOnWhoDrawsThem) {
  const auto keys = keys_of_batch(12);
  const auto whole = stratified_timesteps(keys, 420, {3, 12, 0}, 1000);
  for (std::int64_t i = 0; i < 12; ++i)
    EXPECT_EQ(stratified_timesteps(std::span(keys).subspan(static_cast<std::size_t>(i), 1), 420, {3, 12, i}, 1000)[0],
              whole[static_cast<std::size_t>(i)]);
}

// Over many visits every sample's timestep is uniform: of 20,000 each twentieth of the range gets 1,000 (standard
// deviation 31) at any place of the batch, and neighbours know nothing of each other but that they share no part.
TEST(Objective, AStratifiedTimestepIsUniformOverSteps) {
  std::array<int, 20> counts{};
  double products = 0;
  for (std::uint32_t visit = 1; visit <= 20000; ++visit) {
    const RngKey keys[] = {{420, 77, visit}, {420, 78, visit}};
    const auto drawn = stratified_timesteps(keys, 5, {visit, 10, 3}, 1000);
    ++counts[static_cast<std::size_t>(drawn[0] / 50)];
    products += (static_cast<double>(drawn[0]) - 499.5) * (static_cast<double>(drawn[1]) - 499.5);
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 4 * 31);
  // Ten parts without replacement: the covariance is -1/9 of their variance, 100^2 x (10^2 - 1) / 12.
  const double variance = 82500;
  EXPECT_NEAR(products / 20000, -variance / 9, 4 * variance / std::sqrt(20000));
}

TEST(Objective, TrainedSchedulerGoesWithTheWeights) {
  const auto folder = stable_diffusion(Prediction::epsilon);  // PNDM
  EXPECT_EQ(trained_scheduler(folder, {}).to_json(), folder.to_json());
  const auto v = trained_scheduler(folder, {.prediction = Prediction::v_prediction});
  EXPECT_EQ(v.prediction, Prediction::v_prediction);
  EXPECT_EQ(v.scheduler_class, SchedulerClass::pndm);
  const auto zero = trained_scheduler(folder, {.prediction = Prediction::v_prediction, .zero_terminal_snr = true});
  EXPECT_EQ(zero.to_json().at("_class_name"), "DDIMScheduler");
  EXPECT_EQ(zero.to_json().at("rescale_betas_zero_snr"), true);
  EXPECT_EQ(zero.to_json().at("timestep_spacing"), "trailing");
  EXPECT_EQ(NoiseSchedule(zero).alphas_cumprod().back(), 0);
  EXPECT_THROW(trained_scheduler(folder, {.zero_terminal_snr = true}), Error);
  EXPECT_THROW(trained_scheduler(zero, {}), Error);  // the folder's betas are rescaled already
}

// As Heun's file, and as that of the ancestral sampler, which knows the key.
TEST(Objective, AnUnknownSchedulerStaysUnlessItLacksTheRescalingKey) {
  nlohmann::ordered_json json = {{"_class_name", "HeunDiscreteScheduler"},
                                 {"num_train_timesteps", 1000},
                                 {"beta_start", 0.00085},
                                 {"beta_end", 0.012},
                                 {"beta_schedule", "scaled_linear"},
                                 {"prediction_type", "epsilon"}};
  const auto folder = SchedulerConfig::from_json(json);
  const auto v = trained_scheduler(folder, {.prediction = Prediction::v_prediction});
  json["prediction_type"] = "v_prediction";
  json["steps_offset"] = 1;  // an export's: StableDiffusionPipeline warns of the default
  EXPECT_EQ(v.to_json(), nlohmann::json::parse(json.dump()));
  const ObjectiveConfig zero = {.prediction = Prediction::v_prediction, .zero_terminal_snr = true};
  EXPECT_EQ(trained_scheduler(folder, zero).class_name(), "DDIMScheduler");
  json["_class_name"] = "EulerAncestralDiscreteScheduler";
  json["rescale_betas_zero_snr"] = false;
  const auto rescaled = trained_scheduler(SchedulerConfig::from_json(json), zero);
  EXPECT_EQ(rescaled.class_name(), "EulerAncestralDiscreteScheduler");
  EXPECT_EQ(rescaled.to_json().at("rescale_betas_zero_snr"), true);
  EXPECT_EQ(NoiseSchedule(rescaled).alphas_cumprod().back(), 0);
}

TEST(Objective, WarnsOfWhatSomebodyMayNotHaveMeant) {
  const auto folder = stable_diffusion(Prediction::epsilon);
  EXPECT_TRUE(list_objective_problems(folder, {}).empty());
  const ObjectiveConfig other = {.prediction = Prediction::v_prediction, .snr_gamma = 5, .zero_terminal_snr = true};
  EXPECT_EQ(list_objective_problems(folder, other).size(), 2);
}

}  // namespace
}  // namespace millrace
