// When a save is wanted by its cost or after a failure, and what the next one is reckoned to take.
#include "saves.h"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "error_of.h"
#include "parcels/encodings.h"
#include "train/run_folder.h"
#include "train/small_trainer.h"

namespace millrace {
namespace {

constexpr double save_seconds = 0.05;  // at least

// A process of a run that has trained for 1000 seconds before.
struct Saving {
  explicit Saving(const config::Auto<Duration>& every) {
    trainer.config.run_dir = folder.path().string();
    trainer.config.checkpoint.every = every;
    trainer.context.measure = [] {
      std::this_thread::sleep_for(std::chrono::duration<double>(save_seconds));
      return nlohmann::json::object();
    };
    state.seconds = 1000;
    if (trainer.context.is_root())
      progress = std::make_unique<Progress>(Progress::Options{.run_dir = folder.path(), .tensorboard = false});
    saves.emplace(trainer.context, state, data, progress.get());
  }

  // A step, behind which a save begins.
  void save(double seconds) {
    ++state.step;
    saves->advance({test::make_ref(0, static_cast<int>(state.step))});
    saves->after_step(/*is_busy=*/false, /*is_due=*/true, seconds);
  }
  // It is committed and read back.
  void end_save() {
    for (int part = 0; part < 2; ++part) saves->after_step(/*is_busy=*/false, /*is_due=*/false, 0);
  }

  RunFolder folder;
  test::IdleTask task;
  test::SmallTrainer trainer{task};
  RunState state;
  DataAccount data{trainer.context, /*state=*/"", /*cursors=*/{}};
  std::unique_ptr<Progress> progress;
  std::optional<Saves> saves;
};

// With checkpoint.every=auto: five minutes behind the start. What takes 4 ms or more, and less than 12 s, comes every
// ten.
TEST(NextSave, IsDueByWhatTheLastOneHasCost) {
  Saving saving({});
  EXPECT_FALSE(saving.saves->wants(1299));
  EXPECT_TRUE(saving.saves->wants(1300));
  saving.save(1300);
  EXPECT_FALSE(saving.saves->wants(1e9)) << "one is under way";
  saving.end_save();
  EXPECT_FALSE(saving.saves->wants(1899));
  EXPECT_TRUE(saving.saves->wants(1900));
}

TEST(NextSave, IsDueSoonAfterOneThatHasFailed) {
  Saving saving({Duration::steps(100)});
  EXPECT_FALSE(saving.saves->wants(1e9)) << "the loop knows when it is";
  const auto place = saving.folder.path() / "checkpoints";
  if (test_world().rank() == 0) std::ofstream(place) << "in the way";
  saving.save(2000);
  EXPECT_FALSE(saving.saves->wants(2299));
  EXPECT_TRUE(saving.saves->wants(2300));
  if (test_world().rank() == 0) std::filesystem::remove(place);
  saving.save(2300);
  saving.end_save();
  EXPECT_FALSE(saving.saves->wants(1e9));
}

// What helps is told by the cause: no room on the disk would be another one.
TEST(LastSave, ThatFailsTellsItsCause) {
  Saving saving({Duration::steps(100)});
  if (test_world().rank() == 0) std::ofstream(saving.folder.path() / "checkpoints") << "in the way";
  ++saving.state.step;
  saving.saves->advance({test::make_ref(0, 1)});
  const auto error = test::error_of([&] { saving.saves->save_last(); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), testing::StartsWith("the last checkpoint, of step 1, could not be written: cannot make "));
  EXPECT_THAT(error.hint(), testing::StartsWith("a part of the path is a file, not a directory; earlier checkpoints"));
}

TEST(NextSave, TakesWhatTheLastOneTook) {
  Saving saving({});
  // At first: weights, two moments and EMA, of 128 float32 each, which the ranks share, at 50 MB/s.
  EXPECT_NEAR(saving.saves->seconds_needed(), 4 * 128 * 4 / 50e6 / test_world().size(), 1e-9);
  saving.save(1300);
  saving.end_save();
  EXPECT_GE(saving.saves->seconds_needed(), save_seconds);
}

}  // namespace
}  // namespace millrace
