// One trainer's batch of a step, against the same objective and U-Net on all samples at once.
#include <gmock/gmock.h>
#include <torch/utils.h>

#include <cmath>
#include <csignal>

#include "devices.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/train/diffusion_task.h"
#include "parcels/encodings.h"
#include "small_unet.h"

namespace millrace {
namespace {

using test::make_batch;

constexpr int share_size = 6, whole_batch = 12, first_place = 4, steps_before = 8;
constexpr std::uint64_t seed = 420;

EncodedBatch join(const EncodedBatch& a, const EncodedBatch& b) {
  EncodedBatch both{a.refs, torch::cat({a.moments, b.moments}), torch::cat({a.text, b.text})};
  both.refs.insert(both.refs.end(), b.refs.begin(), b.refs.end());
  return both;
}

// A task on a device, whose first batch is three samples of stripe 2 and three of stripe 5, from producers 0 and 1.
struct Fixture {
  explicit Fixture(const ObjectiveConfig& objective, torch::Device device = torch::kCPU, int place = first_place,
                   double dropout = 0)
      : unet(test::make_small_unet(dropout)) {
    nn::place(*unet, device, torch::kFloat32);
    options.device = device;
    options.objective = objective;
    options.seed = seed;
    options.global_batch = whole_batch;
    options.first_place = place;
    options.step = steps_before;
    options.latent_scale = {0.5, 0.25};
    options.null_text = torch::full({test::text_tokens, test::text_width}, 7, torch::kHalf);
    options.producers = {4, 9};
    options.slots = 4;
    auto first = test::make_content(5, 0, 3), second = test::make_content(2, 0, 3);
    first.report.images = 31;
    second.report.images = 32;
    receiver.put(1, first);
    receiver.put(0, second);
    task.emplace(unet, schedule, BatchReceiver(receiver, {{2, 0}, {5, 1}}, 3), receiver, options);
    EXPECT_TRUE(task->next_batch(1));
  }

  // On the CPU.
  StepInput whole_input() const {
    std::vector<RngKey> keys;
    for (const auto& ref : batch.refs) keys.push_back({seed, ref.hash, ref.epoch});
    return make_step_input(batch.moments, batch.text, options.null_text, keys, uniform_timesteps(keys, schedule.size()),
                           {0.5, 0.25}, schedule, options.objective, torch::kCPU);
  }

  UNet2DConditionModel unet, unet_on_cpu = test::make_small_unet();
  NoiseSchedule schedule{SchedulerConfig::stable_diffusion(Prediction::epsilon)};
  test::ScriptedReceiver receiver;
  DiffusionTask::Options options;
  std::optional<DiffusionTask> task;
  const EncodedBatch batch = join(make_batch(2, 0, 3), make_batch(5, 0, 3));
};

// As the loop asks for it.
torch::Tensor loss_of_part(DiffusionTask& task, std::int64_t begin, std::int64_t end) {
  const auto loss = task.loss(task.inputs(begin, end));
  task.look_ahead();
  return loss;
}

std::vector<torch::Tensor> gradients(UNet2DConditionModel& unet) {
  std::vector<torch::Tensor> all;
  for (auto& parameter : unet->parameters()) {
    all.push_back(parameter.grad().clone().cpu());
    parameter.mutable_grad().reset();
  }
  return all;
}

class DiffusionTaskOnDevice : public test::OnDevice {
 protected:
  // Largest relative error of a loss or a prediction, and of a gradient. A GPU's kernels add in another order and round
  // the timestep's sines otherwise; some gradients are small differences of large numbers.
  double tolerance() const { return is_cuda() ? 1e-4 : 1e-6; }
  double gradient_tolerance() const { return is_cuda() ? 1e-3 : 1e-4; }
};
MILLRACE_ON_DEVICES(DiffusionTaskOnDevice);

// ... which the CPU computes.
TEST_P(DiffusionTaskOnDevice, MicroBatchesAddUpToTheShareOfTheGlobalMean) {
  Fixture fixture({.caption_dropout = 0.5, .snr_gamma = 0.5}, device());
  const auto input = fixture.whole_input();
  EXPECT_GT(input.weight.max().item<float>(), input.weight.min().item<float>());
  const auto prediction = fixture.unet_on_cpu->forward(input.noisy, input.timesteps, input.text.to(torch::kFloat32));
  auto expected = torch::zeros({});
  for (int i = 0; i < share_size; ++i)
    expected = expected + input.weight[i] * (prediction[i] - input.target[i]).square().mean() / whole_batch;
  expected.backward();
  const auto expected_gradients = gradients(fixture.unet_on_cpu);

  for (const int micro : {1, 2, 4, 6}) {
    double sum = 0;
    for (int begin = 0; begin < share_size; begin += micro) {
      const auto loss = loss_of_part(*fixture.task, begin, std::min(begin + micro, share_size));
      loss.backward();
      sum += loss.item<double>();
    }
    EXPECT_NEAR(sum, expected.item<double>(), tolerance() * sum) << "micro-batches of " << micro;
    const auto actual = gradients(fixture.unet);
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_LE((actual[i] - expected_gradients[i]).abs().max().item<double>(),
                gradient_tolerance() * expected_gradients[i].abs().max().item<double>() + 1e-7)
          << "micro-batches of " << micro << ", parameter " << i;
  }
}

TEST(DiffusionTask, StratifiedTimestepsKnowTheStepAndThePlaceInTheGlobalBatch) {
  Fixture fixture({.timesteps = ObjectiveConfig::Timesteps::stratified});
  fixture.task->start_record();
  for (int begin = 0; begin < share_size; begin += 4)
    loss_of_part(*fixture.task, begin, std::min(begin + 4, share_size));
  std::vector<RngKey> keys;
  for (const auto& ref : fixture.batch.refs) keys.push_back({seed, ref.hash, ref.epoch});
  const auto expected = stratified_timesteps(keys, seed, {steps_before + 1, whole_batch, first_place}, 1000);
  EXPECT_TRUE(torch::equal(fixture.task->take_record().at("timesteps"), torch::tensor(expected)));
}

// So a run that goes on with other ranks or micro-batches drops the same.
TEST(DiffusionTask, WhatIsDroppedOutFollowsFromThePlaceInTheGlobalBatch) {
  const auto loss_at = [](int place) {
    Fixture fixture({}, torch::kCPU, place, /*dropout=*/0.5);
    return loss_of_part(*fixture.task, 0, share_size).item<double>();
  };
  // By what is drawn next.
  const auto draw_at = [](int place, int begin) {
    Fixture fixture({}, torch::kCPU, place, /*dropout=*/0.5);
    fixture.task->inputs(begin, share_size);
    return torch::rand({1}).item<double>();
  };
  EXPECT_EQ(loss_at(4), loss_at(4));
  EXPECT_NE(loss_at(4), loss_at(6));
  EXPECT_EQ(draw_at(4, 2), draw_at(6, 0));
  EXPECT_NE(draw_at(4, 2), draw_at(4, 0));
}

// The samples whose caption is the empty one in the U-Net's input.
std::vector<bool> dropped(double batch) {
  Fixture fixture({.caption_dropout = batch});
  fixture.task->start_record();
  for (int begin = 0; begin < share_size; begin += 2) loss_of_part(*fixture.task, begin, begin + 2);
  const auto text = fixture.task->take_record().at("text");
  std::vector<bool> result;
  for (int i = 0; i < share_size; ++i) {
    result.push_back(torch::equal(text[i], fixture.options.null_text.to(torch::kFloat32)));
    EXPECT_TRUE(result.back() || torch::equal(text[i], fixture.batch.text[i].to(torch::kFloat32))) << "sample " << i;
  }
  return result;
}

TEST(DiffusionTask, CaptionsAreDroppedByTheKeysOfTheirSamples) {
  EXPECT_EQ(dropped(0), std::vector<bool>(share_size, false));
  EXPECT_EQ(dropped(1), std::vector<bool>(share_size, true));
  const Fixture fixture({});
  for (const double batch : {0.3, 0.6}) {
    std::vector<bool> wanted;
    for (const auto& ref : fixture.batch.refs)
      wanted.push_back(uniform({seed, ref.hash, ref.epoch}, Purpose::caption_drop) < batch);
    EXPECT_THAT(wanted, testing::AllOf(testing::Contains(true), testing::Contains(false)));
    EXPECT_EQ(dropped(batch), wanted) << batch;
  }
}

// On the host; tests/diffusion/objective_test.cpp tells what a GPU computes to the bit.
TEST_P(DiffusionTaskOnDevice, ARecordHoldsWhatTheStepWasMadeOf) {
  Fixture fixture({.caption_dropout = 0.5, .snr_gamma = 0.5, .noise_offset = 0.1}, device());
  loss_of_part(*fixture.task, 0, share_size);
  EXPECT_TRUE(fixture.task->take_record().empty()) << "nobody asked for a record";
  fixture.task->start_record();
  for (int begin = 0; begin < share_size; begin += 4)
    loss_of_part(*fixture.task, begin, std::min(begin + 4, share_size));
  const auto record = fixture.task->take_record();
  EXPECT_TRUE(fixture.task->take_record().empty());

  const auto input = fixture.whole_input();
  const std::map<std::string, torch::Tensor> wanted = {
      {"latents", input.latents}, {"text", input.text},           {"noise", input.noise},  {"noisy", input.noisy},
      {"target", input.target},   {"timesteps", input.timesteps}, {"weight", input.weight}};
  ASSERT_EQ(record.size(), wanted.size() + 1);
  for (const auto& [name, tensor] : wanted) {
    EXPECT_EQ(record.at(name).scalar_type(), name == "timesteps" ? torch::kInt64 : torch::kFloat32) << name;
    const auto expected = tensor.to(record.at(name).scalar_type());
    if (is_cuda() && (name == "latents" || name == "noisy")) {
      EXPECT_LT((record.at(name) - expected).abs().max().item<double>(), 1e-5) << name;
    } else {
      EXPECT_TRUE(torch::equal(record.at(name), expected)) << name;
    }
  }
  const torch::NoGradGuard no_grad;
  const auto prediction = fixture.unet_on_cpu->forward(record.at("noisy"), record.at("timesteps"), record.at("text"));
  EXPECT_LT((record.at("prediction") - prediction).abs().max().item<double>(), is_cuda() ? 1e-4 : 1e-5);
  EXPECT_FALSE(record.at("prediction").requires_grad());
}

// The loss of three samples with this text, or with what `text_encoder` makes of it.
double loss_of(const torch::Tensor& text, std::optional<TextEncoder> text_encoder, torch::Device device) {
  auto content = test::make_content(2, 0, 3);
  content.batch.text = text;
  test::ScriptedReceiver receiver;
  receiver.put(0, content);
  DiffusionTask::Options options;
  options.objective.caption_dropout = 0;
  options.null_text = torch::zeros({test::text_tokens, test::text_width}, torch::kHalf);
  options.text_encoder = std::move(text_encoder);
  options.producers = {0};
  options.device = device;
  auto unet = test::make_small_unet();
  nn::place(*unet, device, torch::kFloat32);
  DiffusionTask task(unet, NoiseSchedule(SchedulerConfig::stable_diffusion(Prediction::epsilon)),
                     BatchReceiver(receiver, {{2, 0}}, 3), receiver, options);
  EXPECT_TRUE(task.next_batch(1));
  const auto loss = loss_of_part(task, 0, 3);
  loss.backward();
  return loss.item<double>();
}

// encode.text_on=trainer
TEST_P(DiffusionTaskOnDevice, TokensBecomeTextEmbeddings) {
  auto config = preset_configs(Preset::tiny).text_encoder;
  config.update({{"hidden_size", test::text_width}, {"num_attention_heads", 2}});
  auto network = make_text_encoder(config, /*seed=*/1);
  TextEncoder encoder(network, device(), torch::kFloat32, /*batch_size=*/2);
  const auto tokens = torch::arange(3 * test::text_tokens, torch::kInt32).view({3, test::text_tokens});
  const auto loss = loss_of(tokens, encoder, device());
  EXPECT_NEAR(loss, loss_of(encoder.encode(tokens).cpu(), std::nullopt, device()), is_cuda() ? 1e-5 * loss : 0);
  EXPECT_NE(loss, loss_of(tokens + 1, encoder, device()));

  // What half precision cannot hold must reach the guard.
  network->parameters().back().data().fill_(1e6);  // the last norm's bias
  EXPECT_FALSE(std::isfinite(loss_of(tokens, encoder, device())));
}

// Samples 3, 4, 5 of both stripes.
void put_second_batch(Fixture& fixture) {
  fixture.receiver.put(0, 2, 3, 3);
  fixture.receiver.put(1, 5, 3, 3);
}

std::vector<std::string> ids(const DiffusionTask& task) {
  std::vector<std::string> all;
  for (const auto& ref : task.refs()) all.push_back(ref.id);
  return all;
}

double loss_of_step(Fixture& fixture, int micro) {
  double sum = 0;
  for (int begin = 0; begin < share_size; begin += micro)
    sum += loss_of_part(*fixture.task, begin, std::min(begin + micro, share_size)).item<double>();
  return sum;
}

// Whatever arrives when: the next batch is taken out of its slots during a step, and is no part of the run before it is
// asked for.
TEST_P(DiffusionTaskOnDevice, TheNextBatchIsTakenDuringAStepAndCountsLater) {
  const double rounding = is_cuda() ? 1e-5 : 0;  // a GPU's kernels may add in another order each time
  for (const int micro : {2, 4, 6}) {
    Fixture early({}, device()), late({}, device());
    const auto first = ids(*early.task);
    put_second_batch(early);
    EXPECT_EQ(early.receiver.given(), 2);
    const double loss = loss_of_step(early, micro);
    EXPECT_EQ(early.receiver.given(), 4) << "no step has waited for them";
    EXPECT_EQ(early.receiver.held(0) + early.receiver.held(1), 0);
    EXPECT_EQ(ids(*early.task), first);
    EXPECT_NEAR(loss_of_step(early, micro), loss, rounding * loss) << "the present batch is what it was";
    EXPECT_EQ(early.receiver.given(), 4);

    EXPECT_NEAR(loss_of_step(late, micro), loss, rounding * loss);
    EXPECT_FALSE(late.task->next_batch(0));
    EXPECT_EQ(ids(*late.task), first);
    put_second_batch(late);
    EXPECT_TRUE(early.task->next_batch(0));
    EXPECT_TRUE(late.task->next_batch(0));
    EXPECT_THAT(ids(*early.task), testing::ElementsAre("stripe-2/3", "stripe-2/4", "stripe-2/5", "stripe-5/3",
                                                       "stripe-5/4", "stripe-5/5"));
    EXPECT_EQ(ids(*late.task), ids(*early.task));
    const double second_loss = loss_of_step(early, micro);
    EXPECT_NEAR(loss_of_step(late, micro), second_loss, rounding * second_loss);
    EXPECT_GT(std::abs(second_loss - loss), rounding * loss);
    EXPECT_FALSE(early.task->next_batch(0));
  }
}

// ... as it arrives, while the host waits for the device.
TEST_P(DiffusionTaskOnDevice, TheNextBatchIsTakenPieceByPiece) {
  Fixture fixture({}, device());
  loss_of_step(fixture, 4);
  fixture.receiver.put(0, 2, 3, 3);
  fixture.task->look_ahead();
  EXPECT_EQ(fixture.receiver.given(), 3);
  fixture.receiver.put(1, 5, 3, 3);
  fixture.receiver.put(0, 2, 6, 3);
  fixture.task->look_ahead();
  EXPECT_EQ(fixture.receiver.given(), 4) << "one batch is received ahead, and no more";
  fixture.task->look_ahead();
  EXPECT_EQ(fixture.receiver.given(), 4);
  EXPECT_TRUE(fixture.task->next_batch(0));
}

TEST(DiffusionTask, AFailureMetDuringAStepWaitsForItsEnd) {
  Fixture fixture({});
  fixture.receiver.fail_with(Error(Exit::io, "the producer is gone"));
  EXPECT_GT(loss_of_step(fixture, 4), 0);
  EXPECT_GT(loss_of_step(fixture, 4), 0);
  EXPECT_THROW(fixture.task->next_batch(0), Error);
  EXPECT_FALSE(fixture.task->next_batch(0)) << "thrown once, as by the receiver";
  put_second_batch(fixture);
  EXPECT_TRUE(fixture.task->next_batch(0)) << "nothing is lost";
}

TEST(DiffusionTask, AFailureThatNoStepMeetsIsToldAtTheEnd) {
  Fixture fixture({});
  fixture.receiver.fail_with(Error(Exit::io, "the producer is gone"));
  loss_of_step(fixture, 4);
  testing::internal::CaptureStderr();
  fixture.task.reset();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("the producer is gone"));
}

// Of the second batch, of which this stripe alone has arrived.
Overdue overdue_beside(int producer, std::uint32_t stripe) {
  Fixture fixture({});
  fixture.receiver.put(producer, stripe, 3, 3);
  EXPECT_FALSE(fixture.task->next_batch(0));
  return fixture.task->overdue(0).value();
}

TEST(DiffusionTask, BlamesTheProducerOfTheStripeThatLacks) {
  const auto of_stripe_5 = overdue_beside(0, 2), of_stripe_2 = overdue_beside(1, 5);
  EXPECT_EQ(of_stripe_5.producer, 9);
  EXPECT_EQ(of_stripe_5.what, "samples of stripe 5 from producer 1");
  EXPECT_EQ(of_stripe_2.producer, 4);
  EXPECT_EQ(of_stripe_2.what, "samples of stripe 2 from producer 0");
}

TEST(DiffusionTask, TellsWhatItsProducersSayByTheirRanks) {
  Fixture fixture({});
  const auto reports = fixture.task->producer_reports();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports.at(4).images, 32);
  EXPECT_EQ(reports.at(9).images, 31);
  EXPECT_EQ(fixture.task->producer_signal(), 0);
  fixture.receiver.set_signal(SIGUSR1);
  EXPECT_EQ(fixture.task->producer_signal(), SIGUSR1);

  EXPECT_EQ(fixture.task->queue_fill(), 0);
  for (int i = 0; i < 2; ++i) fixture.receiver.put(0, 2, 3 + i, 1);
  EXPECT_DOUBLE_EQ(fixture.task->queue_fill(), 2.0 / 8);  // two producers with four slots each
  for (int i = 0; i < 8; ++i) fixture.receiver.put(1, 5, 3 + i, 1);
  EXPECT_EQ(fixture.task->queue_fill(), 1);
}

}  // namespace
}  // namespace millrace
