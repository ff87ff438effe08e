// The latents of pictures on the ranks of the test, where one of them may fail at its share.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "millrace/comm/agree.h"
#include "millrace/train/picture_painter.h"
#include "mpi_world.h"
#include "own_log.h"
#include "pictures.h"
#include "small_unet.h"
#include "train/small_trainer.h"

namespace millrace {
namespace {

// A picture of each rank's share is made after the other, in one step of the sampler.
PicturePainter make_painter(int of_each_rank, bool last_rank_fails = false) {
  const int ranks = test_world().size();
  const bool fails = last_rank_fails && test_world().rank() == ranks - 1;
  PicturePainter::Options options;
  options.sampling.scheduler = SchedulerConfig::stable_diffusion(Prediction::epsilon).with_class(SchedulerClass::ddim);
  options.sampling.steps = 1;
  options.sampling.guidance_scale = 1;
  options.prompts.assign(static_cast<std::size_t>(of_each_rank * ranks), "a cat");
  options.latent_shape = {4, test::latent_side, test::latent_side};
  const int width = test::text_width - (fails ? 1 : 0);  // which the U-Net refuses
  return {test::make_small_unet(), nullptr, torch::zeros({of_each_rank * ranks, 77, width}), options};
}

bool says_any(bool mine) {
  return test_world().group().any(mine);
}

TEST(Painting, GivesTheFirstTrainerThePicturesOfAll) {
  const auto latents = make_painter(2).paint(test_world().group(), says_any);
  ASSERT_EQ(latents.defined(), test_world().rank() == 0);
  if (latents.defined()) {
    EXPECT_EQ(latents.size(0), 2 * test_world().size());
  }
}

// With one picture each the others are done when they hear of it, with two they are asked in between.
TEST(Painting, WhenATrainerFailsAllHearOfIt) {
  for (const int of_each_rank : {1, 2}) {
    try {
      make_painter(of_each_rank, /*last_rank_fails=*/true).paint(test_world().group(), says_any);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const AgreedError& error) {
      const int last = test_world().size() - 1;
      const auto names_it = std::string(error.what()).find(fmt::format("rank {}: ", last)) == 0;
      EXPECT_EQ(names_it, last > 0) << error.what();
    }
  }
  EXPECT_FALSE(says_any(false)) << "and talk of the same afterwards";
}

TEST(Painting, EndsOnceItHasHadItsShareOfTheTime) {
  test::IdleTask task;
  test::SmallTrainer trainer(task);
  auto painter = make_painter(1);
  trainer.context.painter = &painter;
  Pictures pictures(trainer.context, /*progress=*/nullptr, {.share = 0, .for_a_start = 0});
  const test::OwnLog log;
  int asked = 0;
  const auto gives_up = [&](bool) { return ++asked > 0; };
  EXPECT_FALSE(pictures.paint(1, gives_up));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(pictures.paint(2, gives_up));
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(log.count("no pictures of step 2: painting has taken "), test_world().rank() == 0 ? 1 : 0) << log.text();
}

}  // namespace
}  // namespace millrace
