#include "train/micro_batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

int micro_batch_of_share(const Routing& routing, int global_batch, int micro_batch) {
  const int share = routing.largest_share(global_batch);
  if (micro_batch >= share) return share;
  if (routing.is_even() && share % micro_batch != 0)
    throw Error(Exit::usage,
                fmt::format("batch.global = {} is not a multiple of batch.micro x trainers = {} x {}", global_batch,
                            micro_batch, routing.trainers()),
                fmt::format("batch.micro must divide {}", share));
  return micro_batch;
}

void check_passes(const Routing& routing, const ShardPlan& shards, int micro_batch, std::int64_t images_of_one_pass) {
  if (routing.is_even() || !shards.splits_parameters() || micro_batch <= images_of_one_pass) return;
  throw Error(
      Exit::usage,
      fmt::format("batch.micro = {}: the VAE takes more than {} images of this size in several passes, of which "
                  "trainers with unequal shares may need different numbers; with full_shard all take part in each",
                  micro_batch, images_of_one_pass),
      fmt::format("a batch.micro of at most {}, another strategy, or as many trainers as divide the stripes",
                  images_of_one_pass));
}

static int largest_divisor(int number, int most) {
  while (number % most != 0) --most;
  return most;
}

int choose_micro_batch(const Routing& routing, int global_batch, int fitting) {
  ensure(fitting > 0, "a micro-batch has an image");
  const int share = routing.largest_share(global_batch), most = std::min(fitting, share);
  if (routing.is_even()) return largest_divisor(share, most);
  const int turns = (share + most - 1) / most;
  return (share + turns - 1) / turns;
}

}  // namespace millrace
