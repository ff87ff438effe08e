// What plan says, against arithmetic by hand and against runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "e2e/runs.h"

namespace millrace::e2e {
namespace {

using Json = nlohmann::json;

std::string at(const std::string& name) {
  return (workshop() / name).string();
}

Json plan(const std::string& arguments) {
  const auto outcome = shell(millrace + " plan --json " + arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return Json::parse(outcome.output, nullptr, false);
}

// Two lines of bench among others.
std::string rates(const std::string& name, double train, double encode) {
  std::ofstream out(workshop() / name);
  out << Json{{"bench", "step"}, {"figure", "steps"}, {"unit", "steps/s"}, {"median", train / 64}} << "\n"
      << Json{{"bench", "step"}, {"figure", "images"}, {"unit", "images/s"}, {"median", train}} << "\n"
      << Json{{"bench", "step"}, {"figure", "forward"}, {"unit", "ms"}, {"median", 3}} << "\n\n"
      << Json{{"bench", "encode"}, {"figure", "images"}, {"unit", "images/s"}, {"median", encode}} << "\n";
  return " plan.rates=" + at(name);
}

const std::string cluster = "--nodes '4x8xa100-80g + 48x1xa10g' ";
std::string config(const std::string& name) {
  return " --config " + std::string(MILLRACE_CONFIGS) + "/" + name + ".yaml ";
}

// The published cluster with the rates published for it: 38 and 12 images a second on an A100.
TEST(Plan, PublishedCluster) {
  const auto first =
      plan(cluster + config("sd2_base_256") + rates("at256", 38, 110) + " plan.prices.a100-80g=4 plan.prices.a10g=1.5");
  ASSERT_EQ(first["roles"].size(), 2u);
  const auto &trainers = first["roles"][0], &encoders = first["roles"][1];
  EXPECT_EQ(trainers["name"], "trainers");
  EXPECT_EQ(trainers["ranks"], 32);
  EXPECT_EQ(trainers["gpu"], "a100-80g");
  EXPECT_DOUBLE_EQ(trainers["images_per_second"], 32 * 38);
  EXPECT_EQ(encoders["name"], "encoders");
  EXPECT_EQ(encoders["ranks"], 48);
  EXPECT_EQ(encoders["batch"], 120);
  EXPECT_DOUBLE_EQ(encoders["images_per_second"], 48 * 110);
  EXPECT_DOUBLE_EQ(first["images_per_second"], 1216);
  EXPECT_EQ(first["limit"], "trainers");
  const double days = 550000.0 * 2048 / 1216 / 86400;
  EXPECT_NEAR(first["days"].get<double>(), days, 1e-6);
  EXPECT_NEAR(first["gpu_hours"].get<double>(), 80 * 24 * days, 1e-3);
  EXPECT_NEAR(first["cost"].get<double>(), (32 * 4 + 48 * 1.5) * 24 * days, 1e-2);

  const auto second = plan(cluster + config("sd2_base_512") + rates("at512", 12, 5));
  EXPECT_EQ(second["roles"][1]["batch"], 40);
  EXPECT_EQ(second["limit"], "encoders");  // 48 x 5 against 32 x 12
  EXPECT_DOUBLE_EQ(second["images_per_second"], 240);
  EXPECT_NEAR(second["days"].get<double>(), 850000.0 * 2048 / 240 / 86400, 1e-6);
  EXPECT_TRUE(second["cost"].is_null());
}

TEST(Plan, RolesAreAsTheyAreSet) {
  const auto both = plan("--nodes 2x4xh100 " + rates("both", 60, 30));
  ASSERT_EQ(both["roles"].size(), 1u);
  EXPECT_EQ(both["roles"][0]["ranks"], 8);
  EXPECT_DOUBLE_EQ(both["images_per_second"], 8 * 20);  // 1/60 + 1/30 seconds an image
  EXPECT_EQ(both["limit"], "encoders");
  const auto split = plan("--nodes 2x4xh100 roles.producers=3 " + rates("both", 60, 30));
  EXPECT_EQ(split["roles"][0]["ranks"], 5);
  EXPECT_EQ(split["roles"][1]["ranks"], 3);
  EXPECT_DOUBLE_EQ(split["images_per_second"], 90);
  const auto swapped = plan(cluster + "roles.producer_gpu=a100 roles.trainer_gpu=a10g batch.micro=8");
  EXPECT_EQ(swapped["roles"][0]["gpu"], "a10g");
  const auto cached = plan("--nodes 2x4xh100 data.train.type=latents " + rates("both", 60, 30));
  EXPECT_DOUBLE_EQ(cached["images_per_second"], 8 * 60);
  const auto timed = plan("--nodes 2x4xh100 'duration=2 d' " + rates("both", 60, 30));
  EXPECT_DOUBLE_EQ(timed["days"], 2);
  EXPECT_DOUBLE_EQ(timed["samples"], 2 * 86400 * 160.0);
}

// Memory is that of tensors on the GPU: sharding and checkpointing save it, samples cost it.
TEST(Plan, MemoryFollowsTheSettings) {
  const auto memory = [](const std::string& settings) {
    return plan("--nodes 4x8xa100-80g data.train.type=latents " + settings)["roles"][0]["memory_gib"].get<double>();
  };
  const double base = memory("");
  EXPECT_GT(memory("batch.micro=64"), base + 2);
  EXPECT_LT(memory("model.gradient_checkpointing=true"), base - 1);
  EXPECT_GT(memory("parallel.strategy=ddp"), base + 10);  // 16 bytes of each of 866 million parameters
  EXPECT_LT(memory("parallel.strategy=full_shard"), base - 3);
}

TEST(Plan, MemoryIsWhatRunsTake) {
  ASSERT_EQ(shell(shapes + " make --out " + at("large") + " --count 256 --per-archive 64 --side 128").exit_code, 0);
  const std::string settings[] = {
      "transform.resolution=64 batch.micro=16 batch.global=32 encode.batch_size=16",
      "transform.resolution=128 batch.micro=8 batch.global=16 encode.batch_size=8 parallel.strategy=ddp",
      "transform.resolution=128 batch.micro=12 batch.global=48 encode.batch_size=4 model.gradient_checkpointing=true "
      "roles.producers=1"};
  int number = 0;
  for (const auto& setting : settings) {
    const auto run = fmt::format("memory-{}", ++number);
    const int ranks = number == 3 ? 3 : 2;
    expect_success(mpirun(ranks) + millrace + " train run.dir=" + at(run) +
                   " run.device=cpu model.pipeline=" + at("tiny") + " data.train.path=" + at("large") + " " + setting +
                   " 'duration=6 steps' 'log.every=2 steps' 'optim.warmup=0 steps' checkpoint.every=null");
    const double measured = lines(workshop() / run / "metrics.jsonl").back()["memory_gib"];
    const double planned = plan(fmt::format("--nodes 1x{}xcpu model.pipeline=", ranks) + at("tiny") + " " + setting +
                                rates("any", 60, 30))["roles"][0]["memory_gib"];
    EXPECT_NEAR(planned, measured, 0.1 * measured) << setting;
  }
}

}  // namespace
}  // namespace millrace::e2e
