// Lines of metrics from producers' reports that the test makes up.
#include "producer_account.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "own_log.h"
#include "train/small_trainer.h"

namespace millrace {
namespace {

// Each trainer hears of some producers alone.
class ReportingTask final : public test::IdleTask {
 public:
  // Since the start of the producer.
  void report(int producer, double images, double encode_seconds, double seconds) {
    if (producer % test_world().size() != test_world().rank()) return;
    reports_[producer].images = images;
    reports_[producer].encode_seconds = encode_seconds;
    reports_[producer].seconds = seconds;
  }
  std::map<int, ProducerReport> producer_reports() override { return reports_; }

 private:
  std::map<int, ProducerReport> reports_;
};

TEST(ProducerAccount, IsOfAllProducersSinceTheLastLine) {
  ReportingTask task;
  test::SmallTrainer trainer(task);
  trainer.context.producer_ranks = {{8, "n4"}, {9, "n5"}};
  ProducerAccount account(trainer.context);
  const test::OwnLog log;
  Metrics line, totals;

  task.report(0, 100, 1, 2);
  task.report(1, 50, 1, 2);
  account.account(/*steps=*/25, line, totals);
  EXPECT_DOUBLE_EQ(line.encode_images_per_second, 100 + 50);
  EXPECT_DOUBLE_EQ(totals.encode_images_per_second, 100 + 50);
  EXPECT_DOUBLE_EQ(line.stages.encode, 2 / 4.0);

  // Since then 200 images in 1 s of 2, and 100 in 2 s of 2.
  task.report(0, 300, 2, 4);
  task.report(1, 150, 3, 4);
  account.account(/*steps=*/25, line, totals);
  EXPECT_DOUBLE_EQ(line.encode_images_per_second, 200 + 50);
  EXPECT_DOUBLE_EQ(totals.encode_images_per_second, 150 + 50);
  EXPECT_DOUBLE_EQ(line.stages.encode, 3 / 4.0);
  EXPECT_DOUBLE_EQ(totals.stages.encode, 5 / 8.0);
  EXPECT_EQ(log.count("rank 9 on n5 encodes 4.00 times as long as the median for the same work, for 50 steps\n"),
            test_world().rank() == 0 ? 1 : 0)
      << log.text();

  account.account(/*steps=*/25, line, totals);
  EXPECT_DOUBLE_EQ(line.encode_images_per_second, 200 + 50) << "no parcel came";
  EXPECT_DOUBLE_EQ(line.stages.encode, 3 / 4.0);
}

TEST(ProducerAccount, AnIntervalThatTellsTooLittleGoesOn) {
  ReportingTask task;
  test::SmallTrainer trainer(task);
  trainer.context.producer_ranks = {{8, "n4"}};
  ProducerAccount account(trainer.context);
  Metrics line, totals;
  task.report(0, 100, 10, 20);
  account.account(/*steps=*/1, line, totals);
  EXPECT_DOUBLE_EQ(line.stages.encode, 1 / 2.0);

  task.report(0, 200, 19, 22);  // a batch that was begun before the last line
  account.account(/*steps=*/1, line, totals);
  EXPECT_DOUBLE_EQ(line.stages.encode, 1 / 2.0);
  task.report(0, 300, 20, 40);
  account.account(/*steps=*/1, line, totals);
  EXPECT_DOUBLE_EQ(line.stages.encode, 10 / 20.0);

  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  task.report(0, 300, 20, 40.000001);  // the next parcel of the same batch
  account.account(/*steps=*/1, line, totals);
  EXPECT_DOUBLE_EQ(line.stages.encode, 10 / 20.0);
  task.report(0, 301, 26, 48);
  account.account(/*steps=*/1, line, totals);
  EXPECT_DOUBLE_EQ(line.stages.encode, 6 / 8.0);
  EXPECT_DOUBLE_EQ(totals.stages.encode, 26 / 48.0);
}

}  // namespace
}  // namespace millrace
