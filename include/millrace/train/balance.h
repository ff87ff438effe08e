#pragma once
#include <string>

#include "millrace/train/stages.h"

namespace millrace {

struct Metrics;

// How many ranks train, and how many produce.
struct RoleCounts {
  int trainers = 1, producers = 1;
  bool all_in_one = false;  // every rank does both
  // Number of stripes. A step takes equally many samples of each, so producers that own one stripe more than others set
  // the pace. 0: ignore stripes.
  int stripes = 0;
};

// Differences smaller than this fraction of a rank are ignored: the rates are no more exact.
inline constexpr double rank_tolerance = 0.01;

// The fewest producers that, owning whole stripes, are as fast as `ranks` producers with equal shares (`ranks` may be a
// fraction). `stripes` = 0: ignore stripes. The result is more than `stripes` if one stripe each would be too slow:
// only a larger number of stripes could feed so many producers.
int producers_worth(double ranks, int stripes);

// How well trainers and producers kept up with each other over some time.
struct Balance {
  double images_per_second = 0;         // trained, time waiting for samples included
  double trainers_wait = 0;             // fraction of a step spent waiting until every trainer has its samples, 0..1
  double encode_images_per_second = 0;  // all producers together, while they encode; 0 = nothing was encoded
  StageShares stages{};                 // of the producers

  void add(const Balance& other, double factor);
};
Balance balance_of(const Metrics& metrics);

// What limits the speed of the run.
enum class Bottleneck {
  none,            // trainers set the pace, and there are about as many producers as they need
  more_producers,  // trainers set the pace, and fewer producers would do
  encoding,
  reading,  // or decoding, resizing, tokenizing: any stage before the encoders
  sending,
  shared_hardware,  // each side waits for the other
};
struct Judgement {
  Bottleneck bottleneck = Bottleneck::none;
  // `encoding`: how many producers would keep up, at most one for each stripe; 0 if all-in-one. `more_producers`: how
  // many are enough.
  int producers = 0;
  // `none`: how many trainers the present producers could feed, if that is more than there are and producers wait for
  // most of the time; else 0.
  int trainers = 0;
  double could_take = 0;       // images/s of the trainers if they never waited; 0 if trainers set the pace
  bool wants_stripes = false;  // even `producers` with one stripe each would be too slow

  bool operator==(const Judgement&) const = default;
};
Judgement judge(const Balance& balance, const RoleCounts& roles);

// One line for people: who waits, how much, and what would change it.
std::string describe(const Balance& balance, const RoleCounts& roles);

}  // namespace millrace
